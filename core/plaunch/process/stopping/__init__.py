"""Stopping workers: the steps of a stop, finding all processes of a job, and the guard."""
