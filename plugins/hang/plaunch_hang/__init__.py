"""Finds out that a job hangs, says where its ranks are, and acts.

The library `plaunch_hang.stacks` looks at the workers. Nothing is imported here: this package is on
every command line's way.
"""
