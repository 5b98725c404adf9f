"""Plugins that fork the launcher: their children have copies of its descriptors."""

from __future__ import annotations

import os
import re
import signal

PLUGIN = """\
import os
import signal
import plaunch
from plaunch_logs_default import DefaultLogsSpecs

def fork(name):
    pid = os.fork()
    if pid:
        with open(name, "w") as file:
            file.write(str(pid))
        return
    for fd in (1, 2):  # of the test, which reads them to their end
        os.dup2(os.open(os.devnull, os.O_WRONLY), fd)
    signal.pause()

@plaunch.hookimpl
def plaunch_workers_started(group):
    fork("late")

class Forks(DefaultLogsSpecs):
    def open_sink(self, local_rank, stream):
        # The streams of the ranks before this one have been opened.
        if (local_rank, stream) == (1, "stdout"):
            fork("early")

@plaunch.hookimpl
def plaunch_logs_specs():
    return {"forks": Forks}
"""


def test_their_children_do_not_delay_the_end_and_are_named(plaunch):
    plaunch.write("forking.py", PLUGIN)
    plaunch.environ["PYTHONPATH"] = str(plaunch.folder)
    script = plaunch.write("hello.py", "print('hello')\n")
    words = ["-p", "forking", "--logs-specs=forks", "--log-dir=logs", "--tee=3"]
    try:
        done = plaunch.run(*words, "--nproc-per-node=2", script)
        early = (plaunch.folder / "early").read_text()
    finally:
        for name in ("early", "late"):
            path = plaunch.folder / name
            if path.exists():
                os.kill(int(path.read_text()), signal.SIGKILL)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[default0]:hello", "[default1]:hello"]
    assert "does not answer" not in done.stderr
    assert re.findall(
        r"process (\d+) \(.*\), which a plugin of the launcher has started, (.*)\n", done.stderr
    ) == [
        (
            early,
            "still has stderr of local rank 0 and stdout of local rank 0 open; what it writes "
            "there from now on is lost",
        )
    ]
