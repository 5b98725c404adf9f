"""One plugin of every kind that plaunch has.

plaunch finds the plugins through the entry points of the package, and imports only the modules of
selected ones. This module exports nothing.
"""
