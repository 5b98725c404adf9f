"""Forks workers after their imports: `--preload MODULE,...`.

One process per node, the *fork server*, imports the modules once. The workers of all rounds are
forked from it. If a forked worker could differ from a fresh interpreter, workers are started
afresh.
"""
