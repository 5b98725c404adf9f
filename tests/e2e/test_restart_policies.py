"""Restart policies on one node, and on several."""

from __future__ import annotations

import json
import re
import signal

import pytest

from helpers.nodes import of, options
from helpers.ports import free_port

TIMEOUT = 60.0  # seconds

TYPING_ERROR = "import os\nprint(os.environ['TORCHELASTIC_RESTART_COUNT'], flush=True)\nmodell\n"


def attempts(stdout):
    return sorted(set(stdout) - {"\n"})  # workers write digits and newlines separately


def two_nodes(plaunch, script, *words):
    """Run both launchers to the end."""
    pytest.importorskip("torch.distributed")
    argv = [*options(f"127.0.0.1:{free_port()}", "2", "--nproc-per-node=1"), *words, script]
    with plaunch.start(*argv) as first, plaunch.start(*argv) as second:
        for process in (first, second):
            out, err = process.communicate(timeout=TIMEOUT)
            yield process.returncode, out, err


def test_a_bug_in_the_script_ends_the_job_despite_the_budget(plaunch):
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
        # Each attempt takes longer than that.
        (["--max-restarts=1", "--restart-window=0.2"], 4, "restart 1 of 1 within 0.2 s"),
        (["--max-restarts=3", "--restart-delay=0.1"], 4, "after 0.1"),
        (["--max-restarts=0,worker:2"], 3, "all restarts are used (--max-restarts=worker:2)"),
    ],
)
def test_the_options_of_the_policy(plaunch, words, expected, said):
    script = plaunch.write(
        "train.py",
        "import os, sys, time\nattempt = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "print(attempt, flush=True)\ntime.sleep(0.25)\nsys.exit(3 if attempt < '3' else 0)\n",
    )
    done = plaunch.run(*words, script)
    assert attempts(done.stdout) == [str(attempt) for attempt in range(expected)]
    assert said in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signum", "budget", "attempt"),
    [
        (signal.SIGTERM, "0,node:0", 0),  # a scheduler takes it
        (signal.SIGKILL, "0", 0),
        (signal.SIGKILL, "0,node:1", 1),
    ],
)
def test_node_changes_are_not_counted(agents, endpoint_of, signum, budget, attempt):
    """Unless an option limits the number of lost nodes."""
    quick = "keep_alive_interval=0.4,keep_alive_max_attempt=8"
    words = options(endpoint_of("c10d"), "1:2", f"--max-restarts={budget}", conf=quick)
    first = agents.start(*words)
    agents.until_round(0, first)
    second = agents.start(*words)
    agents.until_round(1, first, second)
    second.process.send_signal(signum)
    (alone,) = agents.until_round(2, first)
    assert (of("WORLD_SIZE", [alone]), of("TORCHELASTIC_RESTART_COUNT", [alone])) == (
        [1],
        [attempt],
    )
    agents.finish(first)


# --- requests of workers --------------------------------------------------------------------------


def saying(word):
    """A script whose rank 1 makes a request in attempt 0, while the others continue."""
    return (
        "import os, sys, time\nimport plaunch\n"
        "rank, attempt = os.environ['RANK'], os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "class ConfigError(Exception): ...\n"
        "@plaunch.record(not_retryable=ConfigError)\ndef main():\n"
        "    sys.stdout.write(attempt + '\\n')\n    sys.stdout.flush()\n"
        "    if attempt != '0':\n        return\n"
        f"    if rank == '1':\n        {word}\n"
        "    time.sleep(60)\nmain()\n"
    )


RETRIES = "plaunch.worker.retry_later(1.5, 'the disk is full')"
GIVES_UP = [
    ("plaunch.worker.give_up('no such dataset')", "gives up: no such dataset"),
    ("raise ConfigError('no such key')", "the worker reports that a restart cannot help"),
]


@pytest.mark.parametrize(("word", "reason"), GIVES_UP, ids=["give_up", "record"])
def test_a_worker_gives_up(plaunch, word, reason):
    done = plaunch.run(
        "--nproc-per-node=2", "--max-restarts=50", plaunch.write("train.py", saying(word))
    )
    assert done.returncode == 1
    assert attempts(done.stdout) == ["0"]
    assert re.search(rf"^  No restart: rank 1 on \S+?:? .*{reason}$", done.stderr, re.M)


@pytest.mark.parametrize(
    ("policy", "expected", "code"), [("always", ["0", "1"], 0), ("never", ["0"], 1)]
)
def test_other_policies_ignore_it(plaunch, policy, expected, code):
    word, _ = GIVES_UP[0]
    script = plaunch.write("train.py", saying(word))
    done = plaunch.run("--nproc-per-node=2", f"--restart-policy={policy}", script)
    assert (attempts(done.stdout), done.returncode) == (expected, code)


@pytest.mark.parametrize("word", ["--max-restarts=1", "--restart-policy=always"])
def test_a_worker_requests_a_delay(plaunch, word):
    """The events show the times."""
    script = plaunch.write("train.py", saying(RETRIES))
    done = plaunch.run(
        *("--nproc-per-node=2", "--event-log-handler=jsonl", "--event-conf=jsonl.path=events"),
        *(word, script),
    )
    assert (attempts(done.stdout), done.returncode) == (["0", "1"], 0)
    told = [json.loads(line) for line in (plaunch.folder / "events").read_text().splitlines()]
    times = {event["name"].removeprefix("plaunch."): event["timestamp"] for event in told}
    (delayed,) = (event for event in told if event["name"] == "plaunch.restart.delayed")
    assert delayed["metadata"]["seconds"] == 1.5
    assert times["rendezvous.completed"] - times["restart.delayed"] >= 1.5
    if "max" in word:
        reason = r"restart 1 of 1, after 1.5 s as requested by rank 1 on \S+: the disk is full"
        assert re.search(reason, done.stderr)


def test_a_workers_request_counts_on_all_nodes(plaunch):
    script = plaunch.write("train.py", saying(RETRIES))
    for returncode, out, err in two_nodes(plaunch, script, "--max-restarts=1"):
        assert (returncode, attempts(out)) == (0, ["0", "1"])
        reason = r": restart 1 of 1, after 1.5 s as requested by rank 1 on \S+: the disk is full"
        assert re.search(reason, err)
    script = plaunch.write("train.py", saying(GIVES_UP[0][0]))
    for returncode, out, err in two_nodes(plaunch, script, "--max-restarts=5"):
        assert (returncode, attempts(out)) == (1, ["0"])
        assert re.search(r"^  No restart: rank 1 on \S+ gives up: no such dataset$", err, re.M)
