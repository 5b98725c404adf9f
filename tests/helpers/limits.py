"""Limits of this process that make a real call of the system fail."""

from __future__ import annotations

import contextlib
import resource


@contextlib.contextmanager
def limited(kind, soft):
    """Lower a soft limit of this process within a `with` block."""
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)
