"""What a launcher shows of itself over HTTP: whether it is alive, what it does, and its numbers.

Nothing here runs without `--metrics-port` or `--health-port`.
"""
