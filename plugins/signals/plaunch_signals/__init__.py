"""The built-in signal policies, one module each, so that a launch imports only its own.

Every command line imports this package, so it imports nothing itself.
"""
