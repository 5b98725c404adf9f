"""Fixtures of these tests: error files."""

from helpers.error_files import child_file

__all__ = ["child_file"]
