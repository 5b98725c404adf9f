"""Workers that are forked after their imports: `--preload MODULE,...`.

One process per node, the *fork server*, imports the modules once. Every worker of every round is
forked from it. Where that would not be the same as a fresh interpreter, workers are started afresh.
"""
