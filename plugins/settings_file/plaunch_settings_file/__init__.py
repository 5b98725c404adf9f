"""The settings file: options by name, which the command line and variables override.

Nothing is imported here: this package is on every command line's way.
"""
