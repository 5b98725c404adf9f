"""Serves a launcher's health, state and counters over HTTP.

Nothing here runs without `--metrics-port` or `--health-port`.
"""
