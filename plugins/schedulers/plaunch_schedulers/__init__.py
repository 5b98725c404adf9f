"""The built-in schedulers: they read from the environment what a launcher is part of.

None of them asks a service or resolves a name. What `--scheduler` means, for these and for those of
other plugins, is in `filling`.
"""
