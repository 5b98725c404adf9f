"""The built-in restart policies: a launch imports one once something has failed, or if it is set.

Nothing is imported here: this package is on every command line's way.
"""
