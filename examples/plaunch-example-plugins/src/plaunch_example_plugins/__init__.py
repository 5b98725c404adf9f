"""One plugin of every kind that plaunch has.

There is nothing to import from here: plaunch finds the plugins through the entry points of the
package, and imports only the module of the one that is asked for.
"""
