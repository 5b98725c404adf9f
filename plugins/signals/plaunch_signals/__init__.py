"""The built-in signal policies, a module for each: a launch imports the one that it uses.

`dispositions` undoes what plugins of third parties change about signals, where there are any.

Nothing is imported here: this package is on every command line's way.
"""
