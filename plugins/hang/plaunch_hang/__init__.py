"""Finds out that a job hangs, says where its ranks are, and acts.

Nothing is imported here: this package is on every command line's way.
"""
