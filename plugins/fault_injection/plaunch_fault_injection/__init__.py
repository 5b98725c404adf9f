"""Fault injection: `--inject=kill:rank=1,after=30s`.

Lets users check that their job recovers from failures. Without the option, nothing here runs.
"""
