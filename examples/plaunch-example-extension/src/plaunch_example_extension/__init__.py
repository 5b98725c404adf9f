"""Restarts the workers of a job when a file appears."""
