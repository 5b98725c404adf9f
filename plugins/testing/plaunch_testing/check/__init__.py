"""Checking a plugin by its name, as `--check-plugin` does."""
