"""The built-in restart policies. A launch imports one after a failure, or if it is selected.

Every command line imports this package, so it imports nothing itself.
"""
