"""A rendezvous backend over a SQLite file, for launchers on one machine.

plaunch finds the backend through the entry point; this module exports nothing.
"""
