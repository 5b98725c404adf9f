"""What holds for the whole suite."""

from __future__ import annotations

import os


def pytest_xdist_auto_num_workers():
    """Half as many tests again as there are processors: most of them wait for something."""
    return max(2, len(os.sched_getaffinity(0)) * 3 // 2)
