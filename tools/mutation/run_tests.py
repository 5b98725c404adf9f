"""Runs pytest with the plugins of this folder, and without a change of PYTHONPATH."""

from __future__ import annotations

import sys

import pytest

if __name__ == "__main__":
    sys.exit(pytest.main())
