"""Fixtures of these tests."""

from __future__ import annotations

from helpers.runtime import runtime_dir

__all__ = ["runtime_dir"]
