"""The restart policies. A launch imports them after a failure, or if one is selected.

Every command line imports this package, so it imports nothing itself.
"""
