"""The built-in signal policies, a module for each: a launch imports the one that it uses.

Nothing is imported here: this package is on every command line's way.
"""
