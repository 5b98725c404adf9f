"""What follows failures, as users choose it: on one node, and on several."""

from __future__ import annotations

import pytest

from helpers.ports import free_port

TIMEOUT = 60.0  # seconds

TYPING_ERROR = "import os\nprint(os.environ['TORCHELASTIC_RESTART_COUNT'], flush=True)\nmodell\n"


def attempts(stdout):
    return sorted(set(stdout) - {"\n"})  # workers write digits and ends of lines apart


def two_nodes(plaunch, script, *words):
    """Run both launchers to their ends."""
    options = [
        *("--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=policies"),
        f"--rdzv-endpoint=127.0.0.1:{free_port()}",
        *words,
    ]
    with plaunch.start(*options, script) as first, plaunch.start(*options, script) as second:
        for process in (first, second):
            out, err = process.communicate(timeout=TIMEOUT)
            yield process.returncode, out, err


def test_a_typing_error_ends_the_job_whatever_budget_is_left(plaunch):
    script = plaunch.write("train.py", TYPING_ERROR)
    done = plaunch.run("--nproc-per-node=2", "--max-restarts=50", script)
    assert done.returncode == 1
    assert attempts(done.stdout) == ["0", "1", "2"]
    assert "NameError: name 'modell' is not defined (train.py:3) came back 3 times" in done.stderr


def test_it_ends_a_job_of_several_nodes_as_well(plaunch):
    script = plaunch.write("train.py", TYPING_ERROR)
    for returncode, out, err in two_nodes(plaunch, script, "--max-restarts=50"):
        assert returncode == 1
        assert attempts(out) == ["0", "1", "2"]
        assert "(train.py:3) came back 3 times within 30 s of the start" in err


@pytest.mark.parametrize(
    ("words", "expected", "said"),
    [
        (["--restart-policy=never", "--max-restarts=5"], 1, "never"),
        (["--restart-policy=always"], 4, ""),
        (["--max-restarts=5", "--no-restart-on=exit:3"], 1, "(--no-restart-on)"),
        (["--max-restarts=5", "--restart-on=exit:4"], 1, "(--restart-on)"),
        (["--max-restarts=1", "--restart-window=1h"], 2, "all restarts are used within 1 h"),
        (["--max-restarts=3", "--restart-delay=0.1"], 4, "after 0.1"),
    ],
)
def test_what_the_options_say_is_done(plaunch, words, expected, said):
    script = plaunch.write(
        "train.py",
        "import os, sys\nattempt = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "print(attempt, flush=True)\nsys.exit(3 if attempt < '3' else 0)\n",
    )
    done = plaunch.run(*words, script)
    assert attempts(done.stdout) == [str(attempt) for attempt in range(expected)]
    assert said in done.stderr
