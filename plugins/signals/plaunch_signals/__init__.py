"""The signal policies `torchrun` and `notify`.

Every command line imports this package, so it imports nothing itself.
"""
