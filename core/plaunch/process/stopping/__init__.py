"""Ending workers: what signals mean, the steps of a stop, and that nothing is left behind."""
