"""Detects that a job hangs, reports where its ranks are, and acts.

The library `plaunch_hang.stacks` reads the stacks of workers. This module imports nothing, because
every command line loads it.
"""
