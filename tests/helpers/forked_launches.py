"""Launchers with torch, forked from a process that has imported it once.

A conftest whose tests need them imports the fixture.

Importing torch takes longer than the rest of a launch. A forked launcher behaves
as `python -m MODULE`, except for its command line in `/proc`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from typing import IO, TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

# It forks for each request, which comes with three streams and a socket to which it writes the exit
# code. The forked process leaves the loop and runs the module as the interpreter would.
_SERVER = """\
import gc, json, os, runpy, select, signal, socket, sys
import torch.distributed.run
requests = socket.socket(fileno=int(sys.argv[1]))
gc.collect()
gc.freeze()
ends = {}  # the socket for its exit code, and its process id, by descriptor
while True:
    ready, _, _ = select.select([requests, *ends], [], [])
    for pidfd in set(ready) & set(ends):
        pid, end = ends.pop(pidfd)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        try:
            end.sendall(b"%d" % code)
        except BrokenPipeError:
            pass
        end.close()
        os.close(pidfd)
    if requests not in ready:
        continue
    data, fds, _, _ = socket.recv_fds(requests, 1 << 20, 4)
    if not data:
        os._exit(0)
    pid = os.fork()
    if not pid:
        break
    end = socket.socket(fileno=fds.pop())
    end.sendall(b"%d\\n" % pid)
    ends[os.pidfd_open(pid)] = pid, end
    for fd in fds:
        os.close(fd)
for number in range(3):
    os.dup2(fds[number], number)
requests.detach()
os.closerange(3, os.sysconf("SC_OPEN_MAX"))
request = json.loads(data)
os.chdir(request["cwd"])
os.environ.clear()
os.environ.update(request["environ"])
exec(request["before"], {})
own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
sys.path[:1] = [request["cwd"], *filter(None, own)]
module, *sys.argv[1:] = request["words"]
sys.orig_argv[:] = [sys.executable, "-m", *request["words"]]
sys.modules.pop(module, None)  # as if it had not been imported, which would be warned of
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


class ForkedLaunch:
    """A forked process with the interface of `subprocess.Popen`."""

    def __init__(self, words: Sequence[str], end: socket.socket) -> None:
        self.args = list(words)
        self.returncode: int | None = None
        self._end = end
        with end.makefile("rb", buffering=0) as lines:
            line = lines.readline()
        if not line:
            raise RuntimeError("the process that forks launchers has ended")
        self.pid = int(line)

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._end], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = int(self._end.recv(100))
            self._end.close()
        return self.returncode

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class LaunchServer:
    """Starts launchers; created by `launch_server`."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests

    def start(
        self,
        *words: str,
        cwd: Path,
        environ: Mapping[str, str],
        stdin: int,
        stdout: int,
        stderr: int,
        before: str = "",
    ) -> ForkedLaunch:
        """Start a module with arguments, after other code; the streams are descriptors."""
        request = {"words": words, "cwd": str(cwd), "environ": dict(environ), "before": before}
        ours, theirs = socket.socketpair()
        with theirs:
            fds = [stdin, stdout, stderr, theirs.fileno()]
            socket.send_fds(self._requests, [json.dumps(request).encode()], fds)
        return ForkedLaunch(words, ours)

    def run(
        self,
        *words: str,
        cwd: Path,
        env: Mapping[str, str],
        stdin: IO[Any],
        timeout: float,
        before: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Run a module with arguments to its end, as `subprocess.run` does."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            streams = {"stdin": stdin.fileno(), "stdout": out.fileno(), "stderr": err.fileno()}
            process = self.start(*words, cwd=cwd, environ=env, before=before, **streams)
            try:
                process.wait(timeout)
            except BaseException:
                process.kill()
                raise
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(words, process.wait(), out.read(), err.read())


@contextlib.contextmanager
def launch_server() -> Iterator[LaunchServer]:
    """Run a process that forks launchers."""
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with ours, theirs:
        fd = theirs.fileno()
        with subprocess.Popen([sys.executable, "-c", _SERVER, str(fd)], pass_fds=[fd]):
            theirs.close()
            try:
                yield LaunchServer(ours)
            finally:
                ours.close()


@pytest.fixture(scope="session")
def with_torch() -> Iterator[LaunchServer]:
    """Starts launchers that have already imported torch; skips without torch."""
    if find_spec("torch") is None:
        pytest.skip("there is no torch")
    with launch_server() as server:
        yield server
