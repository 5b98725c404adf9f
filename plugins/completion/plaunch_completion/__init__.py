"""What helps at the prompt: `--help`, `--version`, and shell completion.

`--print-completion` prints a script for a shell, which asks for the names of plugins.
"""
