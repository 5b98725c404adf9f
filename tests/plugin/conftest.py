"""Fixtures of these tests: folders that look like site-packages."""

from helpers.site import checked_in, own_metadata, site

__all__ = ["checked_in", "own_metadata", "site"]
