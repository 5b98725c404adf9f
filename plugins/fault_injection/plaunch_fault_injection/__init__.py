"""Faults on purpose: `--inject=kill:rank=1,after=30s`.

For users who want to know that their checkpointing works. Nothing here runs without the option.
"""
