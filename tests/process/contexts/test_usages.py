"""The two calls of `start_processes` that its users write, as they write them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from plaunch.process import Std, SubprocessContext, start_processes
from plaunch_functions import MultiprocessContext

FUNCTION = """
import os
import sys

from plaunch.process import Std, start_processes


def trainer(a, b, c):
    print("train", a, b, c, "as local rank", os.environ["LOCAL_RANK"])
    print("warning from", os.environ["LOCAL_RANK"], file=sys.stderr)
    return a + b + c


if __name__ == "__main__":
    ctx = start_processes(
        name="trainer",
        entrypoint=trainer,
        args={0: (1, 2, 3), 1: (4, 5, 6)},
        envs={0: {"LOCAL_RANK": 0}, 1: {"LOCAL_RANK": 1}},
        log_dir=sys.argv[1],
        redirects=Std.ALL,
        tee={0: Std.ERR},
    )
    result = ctx.wait()
    print(result.is_failed(), result.return_values, type(ctx).__name__)
    for rank in sorted(result.stdouts):
        print(repr(open(result.stdouts[rank]).read()), repr(open(result.stderrs[rank]).read()))
"""


def test_two_trainers_as_a_function(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(FUNCTION)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "logs")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == "[trainer0]:warning from 0\n"
    assert done.stdout.splitlines() == [
        f"False {{0: 6, 1: 15}} {MultiprocessContext.__name__}",
        r"'train 1 2 3 as local rank 0\n' 'warning from 0\n'",
        r"'train 4 5 6 as local rank 1\n' 'warning from 1\n'",
    ]
    assert done.returncode == 0


@pytest.fixture
def temporary_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def test_two_echoes_as_a_program(temporary_folders, capfd):
    ctx = start_processes(
        name="echo",
        entrypoint="echo",
        args={0: "hello", 1: "world"},
        redirects={1: Std.OUT},
    )
    result = ctx.wait(60)
    assert isinstance(ctx, SubprocessContext)
    assert result.return_values == {0: None, 1: None}
    assert not result.is_failed()
    assert capfd.readouterr().out == "hello\n"
    assert result.stdouts[0] == ""
    with open(result.stdouts[1]) as file:
        assert file.read() == "world\n"
    assert result.stdouts[1].startswith(str(temporary_folders) + os.sep)
    assert result.stderrs == {0: "", 1: ""}
