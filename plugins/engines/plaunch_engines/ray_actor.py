"""The actor that runs an agent on a node of a Ray cluster.

Ray sends this class to the node: it must not import other modules of plaunch, which may have
another version there. The agent reports that to the command.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Output = tuple[bytes, bytes, int | None, bool]

# Ray keeps results up to 100 KiB out of its object store; there are two streams.
_MAX_READ = 32 << 10  # bytes
# Milliseconds without output, after the exit of an agent whose streams are open.
_STREAM_WAIT = 2000
# What Ray sets in its workers, and what must not reach other programs: threads are limited to the
# CPUs that are reserved, and breakpoint() waits for a connection.
_RAYS_VARIABLES = ("OMP_NUM_THREADS", "PYTHONBREAKPOINT", "SPT_NOENV")


class AgentActor:
    """An agent as a child of a Ray worker. Its methods run on several threads."""

    def start(self, command: Sequence[str]) -> tuple[str, str]:
        """Start the agent; return the identifier of Ray's node, and its address.

        Raises:
            OSError: the system does not start it.
        """
        import ray

        self.start_process(command)
        return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()

    def start_process(self, command: Sequence[str]) -> None:
        """Start the agent, whose standard streams are pipes."""
        stdin, self._stdin = os.pipe()
        out, stdout = os.pipe()
        err, stderr = os.pipe()
        self._streams = (out, err)
        self._open = {out, err}
        # Ray blocks SIGINT on the threads of actors, and children inherit that.
        mask = signal.pthread_sigmask(signal.SIG_SETMASK, ())
        try:
            self._process = subprocess.Popen(
                command,
                env=clean_environment(os.environ),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            for fd in (stdin, stdout, stderr):
                os.close(fd)
        self._pidfd = os.pidfd_open(self._process.pid)

    def read(self) -> Output:
        """Wait for output or the exit of the agent.

        Returns:
            What it has written to standard output and standard error, its exit code (128+n for
            signal n, None while it runs), and whether this was all: another process may hold the
            streams open, so it is if nothing follows for a while.
        """
        poller = select.poll()
        for fd in self._open:
            poller.register(fd, select.POLLIN)
        has_ended = self._process.returncode is not None
        if not has_ended:
            poller.register(self._pidfd, select.POLLIN)
        ready = {fd for fd, _ in poller.poll(_STREAM_WAIT if has_ended else None)}
        if has_ended and not ready:
            self._open.clear()
        parts = []
        for fd in self._streams:
            data = b""
            if fd in ready:
                data = os.read(fd, _MAX_READ)
                if not data:
                    self._open.discard(fd)
            parts.append(data)
        code = self._process.poll()
        if code is not None and code < 0:
            code = 128 - code
        return parts[0], parts[1], code, code is not None and not self._open

    def write(self, data: bytes) -> None:
        """Write to the agent's standard input; a no-op if it has ended."""
        with contextlib.suppress(BrokenPipeError):
            while data:
                data = data[os.write(self._stdin, data) :]

    def stop(self) -> None:
        """Kill the agent, or what runs before it; its guard ends the workers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a Ray worker without what Ray has set for itself.

    Args:
        environ: of the worker. Devices that Ray has assigned stay; a list of devices that is empty
            stands for no request, and hides them from programs that share them.
    """
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith("RAY_")
        and name not in _RAYS_VARIABLES
        and not (name.endswith("_VISIBLE_DEVICES") and not value)
    }
