"""Fixtures of these tests: folders that look like site-packages, and what plugins wait for."""

from __future__ import annotations

from helpers.gates import gate
from helpers.site import checked_in, own_metadata, site

__all__ = ["checked_in", "gate", "own_metadata", "site"]
