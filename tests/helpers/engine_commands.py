"""Commands that start the agents of a job: `plaunch --on=...`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

from helpers.processes import ancestors_of, is_gone, parent_of
from helpers.waiting import wait_until

LIMIT = 60.0  # seconds for the end of a command
LEFT_LIMIT = 10.0  # seconds until nothing is left of a job on any node
TAG = "PLAUNCH_TEST_COMMAND"  # marks the processes of a job on all nodes
# Survivors notice a lost node soon.
QUICK = "--rdzv-conf=last_call_timeout=1,keep_alive_interval=0.4,keep_alive_max_attempt=8"


class EngineCommand:
    """A running command, what it has written, and the processes of its job.

    Args:
        folder: the working folder.
        words: the arguments of plaunch.
        prefix: the words in front of it, which run it in a cluster.
        env: more variables.
        stdout: a descriptor for its standard output, which is in a file otherwise.
        stdin: its standard input; empty by default.
    """

    def __init__(self, folder, *words, prefix=(), env=None, stdout=None, stdin=subprocess.DEVNULL):
        self.folder = folder
        self._out, self._err = folder / ".out", folder / ".err"
        self._tag = f"{TAG}={secrets.token_hex(6)}"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [*map(str, prefix), sys.executable, "-m", "plaunch", *map(str, words)],
                cwd=folder, stdin=stdin, stderr=err,
                stdout=out if stdout is None else stdout,
                env={**os.environ, **(env or {}), TAG: self._tag.partition("=")[2]},
                start_new_session=True,
            )  # fmt: skip

    # --- output -----------------------------------------------------------------------------------

    @property
    def out(self):
        return self._out.read_text()

    @property
    def err(self):
        return self._err.read_text()

    def text(self):
        return self.out + self.err

    def wait_for(self, pattern, count=1):
        wait_until(
            lambda: len(re.findall(pattern, self.text())) >= count,
            lambda: f"{pattern!r} in {self.text()}",
        )

    def facts(self, key):
        """Return the JSON objects with a key that workers have written, each with its node."""
        found = []
        for line in self.out.splitlines():
            node, text = re.fullmatch(r"(?:\[([^]]+)\] )?(.*)", line).groups()
            if text.startswith("{") and key in (facts := json.loads(text)):
                found.append({**facts, "node": node})
        return found

    def workers(self):
        """Return what workers have said of themselves."""
        return self.facts("RANK")

    def wait_for_workers(self, count):
        wait_until(lambda: len(self.workers()) >= count, self.text)
        return self.workers()

    def wait_for_world(self, size, round_=0):
        """Wait for the workers of a round; return them by rank."""

        def workers():
            found = [w for w in self.workers() if w["PLAUNCH_ROUND"] == str(round_)]
            return sorted(found, key=lambda worker: int(worker["RANK"]))

        wait_until(lambda: len(workers()) >= size, self.text)
        assert [worker["RANK"] for worker in workers()] == [str(rank) for rank in range(size)]
        return workers()

    # --- the end ----------------------------------------------------------------------------------

    def end(self):
        """Wait for the end; return the exit code."""
        return self.process.wait(LIMIT)

    def wait(self, code):
        """Assert that it ends with a code."""
        assert self.end() == code, self.text()
        return self

    def signal(self, signum):
        """Send a signal to the command itself, which may run in a namespace."""
        [pid] = self.find("plaunch")
        os.kill(pid, signum)

    def kill(self):
        """Kill the command itself."""
        self.signal(signal.SIGKILL)
        self.wait(-signal.SIGKILL)

    # --- processes --------------------------------------------------------------------------------

    def processes(self):
        """Return the processes of the job on all nodes, with their command lines.

        Workers, and all that they start, have the tag; the command line of an agent, which gets
        its variables later, has the folder.
        """
        tag, folder = self._tag.encode(), os.fsencode(self.folder)
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                title = (path / "cmdline").read_bytes()
                if folder in title or tag in (path / "environ").read_bytes().split(b"\0"):
                    found[int(path.name)] = os.fsdecode(title).rstrip("\0").split("\0")
        return {pid: title for pid, title in found.items() if not is_gone(pid)}

    def find(self, module):
        """Return the processes that run a module, without forks of such a process."""
        found = {p for p, title in self.processes().items() if title[1:3] == ["-m", module]}
        roots = []
        for pid in sorted(found):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                if parent_of(pid) not in found:
                    roots.append(pid)
        return roots

    def agents(self):
        return self.find("plaunch_engines.node")

    def agent_of(self, worker):
        """Return the agent of a worker that runs, also if its process id is that of a namespace."""
        rank = f"RANK={worker['RANK']}".encode()
        ranked = [pid for pid in self.processes() if rank in _environ(pid).split(b"\0")]
        [found] = {*self.agents()} & {above for pid in ranked for above in ancestors_of(pid)}
        return found

    def check_nothing_left(self):
        """Assert that all processes of the job end soon."""
        began = time.monotonic()
        wait_until(lambda: not self.processes(), self.processes)
        assert time.monotonic() - began < LEFT_LIMIT

    def end_now(self):
        """Kill the command and, after its time, whatever is left."""
        self.process.kill()
        self.process.wait()
        try:
            self.check_nothing_left()
        finally:
            for pid in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _environ(pid):
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def check_refused(command, message, code=111):
    """Assert that a command ends with one line, and that it has started nothing."""
    command.wait(code)
    lines = command.err.splitlines()
    assert len(lines) == 1, command.err
    assert re.search(message, lines[0]), command.err
    assert command.out == ""
    command.check_nothing_left()
