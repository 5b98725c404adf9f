"""Detects that a job hangs, reports where its ranks are, and acts.

This module imports nothing, because every command line loads it.
"""
