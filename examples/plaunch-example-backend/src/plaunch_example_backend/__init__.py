"""A rendezvous backend over a SQLite file, for nodes on one machine.

There is nothing to import from here: plaunch finds the backend through the entry point.
"""
