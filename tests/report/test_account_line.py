"""What the launcher says at its end of where the time went."""

from __future__ import annotations

import os
import re
import sys

import pytest

from helpers.programs import run_python


@pytest.mark.parametrize(
    ("program", "options", "code", "words"),
    [
        ("import time; time.sleep(1)", [], 0, r"\d(\.\d)? s training"),
        (
            "import os, time; time.sleep(0.6); "
            "exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')",
            ["--max-restarts=1"],
            0,
            r"(\d(\.\d)? s lost to|,) 1 restart$",
        ),
        ("import time; time.sleep(0.2); exit(7)", [], 7, r"\d(\.\d)? s training"),
    ],
)
def test_one_line_at_the_end(program, options, code, words):
    argv = ["-m", "plaunch", *options, "--no-python", sys.executable, "-c", program]
    for level, lines in (("INFO", 1), ("WARNING", 0)):
        done = run_python(*argv, env={**os.environ, "LOGLEVEL": level})
        assert done.returncode == code, done.stderr
        found = re.findall(r"this launch took (.*)", done.stderr)
        assert len(found) == lines
        assert all(re.search(words, line) for line in found), found
