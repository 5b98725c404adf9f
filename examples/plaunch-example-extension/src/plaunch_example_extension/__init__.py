"""Starts the workers of a job again when a file appears."""
