"""Functions that tests launch; they live in a module so that a spawned worker can import them."""

from __future__ import annotations

import os
import sys


def rank_and_arguments(*args):
    return int(os.environ["RANK"]), args


def fail_on_rank_1(code):
    if os.environ["RANK"] == "1":
        if isinstance(code, int):
            sys.exit(code)
        raise ValueError(code)
    return "fine"


def succeed_on_second_attempt():
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if attempt == 0:
        raise ValueError("first attempt")
    return attempt


def environment(name):
    return os.environ.get(name)
