"""Jobs with the default run id are told apart by what they run."""

from __future__ import annotations

import pytest
from plaunch_membership.job_lookup import MAX_COMMAND, describe_command


@pytest.mark.parametrize(
    ("words", "described"),
    [
        ([], ""),
        (["/home/me/my project/train.py", "--lr=1"], "train.py --lr=1"),
        (["train it.py"], "train_it.py"),
        (
            ["t.py", "--api-key=abc", "--hf_token", "abc", "x"],
            "t.py --api-key=*** --hf_token *** x",
        ),
        (["t.py", "--use-token", "--lr", "1"], "t.py --use-token --lr 1"),
        (["t.py", "\x1b[31m"], "t.py \\x1b[31m"),
        (["t.py", "x" * 999], f"t.py {'x' * 999}"[:MAX_COMMAND]),
    ],
)
def test_a_command_in_a_record(words, described):
    assert describe_command(words) == described
