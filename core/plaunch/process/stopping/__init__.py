"""Ending workers: what signals mean, the steps of a stop, and that no orphan is left."""
