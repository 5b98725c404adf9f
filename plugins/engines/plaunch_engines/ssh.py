"""The engine `ssh`: each agent is started through the system's ssh."""

from __future__ import annotations

import contextlib
import enum
import fcntl
import math
import os
import shlex
import shutil
import sys
import termios
from threading import BoundedSemaphore
from typing import TYPE_CHECKING

from plaunch.durations import bounded
from plaunch.errors import UsageError
from plaunch.process import raise_descriptor_limit

from plaunch_engines.agent_process import AgentProcess
from plaunch_engines.node_command import with_python
from plaunch_engines.ssh_hosts import exclude_hosts, parse_hosts, set_pythons

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plaunch.engines import EngineRequest

    from plaunch_engines.ssh_hosts import SshHost

_MAX_OPENING = 64  # connections that are being opened at a time
_SSH_PORT = "22"
_MOST_LIKELY_WORKERS = 256
_FAILED = 255  # ssh's exit code for its own errors
# What a job needs, whatever the user's configuration says. Everything else is the user's.
_PROBES = 3  # without an answer, after which ssh takes a connection for lost
_OPTIONS = (
    "BatchMode=yes",  # ssh fails instead of asking for a password
    "ConnectTimeout=20",
    f"ServerAliveCountMax={_PROBES}",
    "ControlMaster=no",  # ssh must end with its session; an existing master is still used
    "ClearAllForwardings=yes",
    "RequestTTY=no",  # a terminal would merge the streams, and change what passes through
    "RemoteCommand=none",
    "LogLevel=ERROR",  # no banners
)
# Runs on the node: sh -c _START plaunch FOLDER PYTHON [NAME=VALUE ...] COMMAND. The third word of
# SSH_CONNECTION is the address at which this node was reached. Other nodes cannot use it if it is
# that of the loopback device or has a zone. The parent is process 1 if the connection ended while a
# start-up file of the login shell ran. The text must not contain newlines and exclamation
# marks, which csh changes.
_START = (
    '[ "$PPID" = 1 ] && exit 1; '
    'cd "$1" 2>/dev/null; '
    'command -v "$2" >/dev/null || { '
    'echo "there is no $2; name the Python of the nodes with --node-python" >&2; exit 127; }; '
    "shift 2; "
    "address=${SSH_CONNECTION#* * }; address=${address%% *}; "
    "case $address in 127.0.0.1|::1|*%*|UNKNOWN) address=;; esac; "
    'exec env PLAUNCH_NODE_ADDRESS="$address" "$@"'
)


class SshState(enum.Enum):
    """The state of a connection."""

    WAITING = "waiting"  # until fewer others are being opened
    OPENING = "opening"
    OPENED = "opened"  # and perhaps closed again


class SshEngine:
    """Starts each agent on a host of a list; hosts that are left replace lost ones.

    Args:
        request: `where` has the hosts, or the name of a host file.

    Raises:
        UsageError: a host or a file is invalid, or there is no ssh.
    """

    used_options = ("exclude", "pythons", "silence_limit")

    def __init__(self, request: EngineRequest) -> None:
        if not request.where:
            raise UsageError("--on=ssh needs hosts: --on=ssh:HOST,HOST or --on=ssh:@HOSTFILE")
        self._folder = request.folder
        self._silence_limit = request.silence_limit
        self._ssh = _split_command(request.options.get("ssh_command") or "ssh")
        hosts = exclude_hosts(parse_hosts(request.where), request.exclude)
        self._unused = set_pythons(hosts, request.pythons)
        self.nodes: int | None = len(self._unused)
        self._openings = BoundedSemaphore(_MAX_OPENING)
        self._handles: list[SshHandle] = []

    @property
    def can_replace(self) -> bool:
        """Whether hosts are left."""
        return bool(self._unused)

    def start(self, command: Sequence[str], indices: Sequence[int]) -> list[SshHandle]:
        """Begin to connect to the next hosts."""
        if len(self._unused) < len(indices):
            raise UsageError(f"no host is left: --on=ssh names {self.nodes}")
        raise_descriptor_limit()  # each connection has three pipes
        hosts = self._unused[: len(indices)]
        del self._unused[: len(indices)]
        started = [
            SshHandle(
                host,
                self._command(host, command),
                self._test_of(host),
                self._openings,
                self._silence_limit,
            )
            for host in hosts
        ]
        self._handles += started
        return started

    def close(self) -> None:
        """End all connections; the agents end with them."""
        for handle in self._handles:
            handle.stop()

    def _command(self, host: SshHost, command: Sequence[str]) -> list[str]:
        """Return the command that connects; ssh gives the shell on the node one text."""
        env = [f"PLAUNCH_NODE_SILENCE={self._silence_limit:g}"]
        if host.slots is not None:  # a variable, so that --nproc-per-node has priority
            env.append(f"PET_NPROC_PER_NODE={host.slots}")
        if "PYTHONPATH" in os.environ:  # plaunch may be there
            env.append(f"PYTHONPATH={os.environ['PYTHONPATH']}")
        if host.python:
            command = with_python(command, host.python)
        words = ["exec", "sh", "-c", _START, "plaunch", self._folder, command[0], *env, *command]
        # A silent network ends the session on this side after the same time.
        probe = bounded(self._silence_limit) / (_PROBES + 1)
        options = [*_OPTIONS, f"ServerAliveInterval={math.ceil(probe)}"]
        return [*self._connect(host, options), shlex.join(words)]

    def _test_of(self, host: SshHost) -> str:
        """Return a command with which the user can try the connection."""
        return shlex.join([*self._connect(host, ()), "true"])

    def _connect(self, host: SshHost, options: Sequence[str]) -> list[str]:
        words = [*self._ssh, *(f"-o{option}" for option in options)]
        return [*words, *(["-p", host.port] if host.port else []), host.target]


class SshHandle(AgentProcess):
    """An agent behind a connection, which may have to wait until it is opened.

    Args:
        host: where it runs.
        command: the command that connects and starts it.
        test: a command with which the user can try the connection.
        openings: has a place for each connection that may be opened now.
        silence_limit: seconds without a line after which the agent ends its workers.
    """

    def __init__(
        self,
        host: SshHost,
        command: Sequence[str],
        test: str,
        openings: BoundedSemaphore,
        silence_limit: float,
    ) -> None:
        super().__init__(host.name, command, begins=False)
        self._hint = f"this must work without a question: {test}{_port_hint(host)}\n".encode()
        self._openings = openings
        self._silence_limit = silence_limit
        self._ssh_state = SshState.WAITING
        self._own_stderr = os.dup(self._of_agent[2])
        self.write(b"\n")  # ssh reads it once the session is open; the agent ignores it

    def poll(self) -> int | None:
        """Open the connection if it is its turn; return the exit code of ssh."""
        code = super().poll()
        if self._ssh_state is SshState.WAITING:
            if code is not None:
                self._close_own_stderr()
            elif self._openings.acquire(blocking=False):
                self.begin()
                self._ssh_state = SshState.OPENING
        elif self._ssh_state is SshState.OPENING and (code is not None or self._is_open()):
            if code == _FAILED and not self._is_open():
                os.write(self._own_stderr, self._hint)
            self._openings.release()
            self._ssh_state = SshState.OPENED
            self._close_own_stderr()
        elif self._ssh_state is SshState.OPENED:
            self.send_heartbeat(self._silence_limit)
        return code

    def describe_silence(self) -> str:
        """Describe the state of the connection, for an agent that has not reported."""
        if self._ssh_state is SshState.OPENED:
            return (
                "ssh is connected, but the login shell has not started the agent; a start-up file "
                "such as ~/.bashrc may hang there"
            )
        waiting = self._ssh_state is SshState.WAITING
        return "ssh waits for other connections" if waiting else "ssh has not connected"

    def close(self) -> None:
        """Close the descriptors."""
        super().close()
        self._close_own_stderr()

    def _is_open(self) -> bool:
        """Whether ssh has read from its standard input."""
        unread = fcntl.ioctl(self._stdin, termios.FIONREAD, bytes(4))
        return int.from_bytes(unread, sys.byteorder) == 0

    def _close_own_stderr(self) -> None:
        if self._own_stderr >= 0:
            os.close(self._own_stderr)
        self._own_stderr = -1


def _port_hint(host: SshHost) -> str:
    """Return what to do if a port is rather a number of workers, as in host files of MPICH."""
    port = host.port
    if not port or port == _SSH_PORT or int(port) > _MOST_LIKELY_WORKERS:
        return ""
    return (
        f"; {port} is a port here: for {port} workers write slots={port} in the host file, or "
        f"--nproc-per-node={port}"
    )


def _split_command(text: str) -> list[str]:
    with contextlib.suppress(ValueError):
        words = shlex.split(text)
        if words and shutil.which(words[0]):
            return words
    raise UsageError(f"--on=ssh runs {text!r}, which is not a program in PATH (--ssh-command)")
