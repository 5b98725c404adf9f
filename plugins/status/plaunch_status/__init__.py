"""What a launcher shows of itself over HTTP: whether it is alive, what it does, and its numbers.

Nothing here runs unless it is asked for, with `--metrics-port` or `--health-port`.
"""
