"""Runs the server of a job's store in a process of its own, next to the launcher."""

from __future__ import annotations

import contextlib
import marshal
import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from plaunch_job_store.reports import ReportFilter, ReportPipe, ReportReader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plaunch_job_store.reports import ServerReport

# The program imports this package only, and the standard library: it starts in about 30 ms and
# takes about 10 MiB. The secret comes through the pipe, as arguments are public.
_PROGRAM = """\
import sys
sys.path.append({path!r})
from plaunch_job_store.host import run_server
run_server({listener}, {pipe})
"""
_MAX_SETTINGS = 1 << 16  # bytes
_STDOUT = 1
_END_TIMEOUT = 2.0  # seconds
OTHER_DESCRIPTORS = 16  # of the server, beside those of clients


class StoreProcess:
    """The server's process, until `close`; it also ends when this process does.

    Args:
        listener: the listening socket to serve; it is closed here.
        token: the job's token, or None.
        run_id: the id of the job.
        environ: the variables of the process; without secrets.
        values: what the store holds at first.
        on_report: called on a thread of its own with what the server reports.
        linger: if this process ends without `close`, seconds until the server ends, too; it ends
            before that once no client is connected.
    """

    def __init__(
        self,
        listener: socket.socket,
        token: bytes | None,
        run_id: str,
        *,
        environ: Mapping[str, str],
        values: Mapping[str, bytes] | None = None,
        on_report: Callable[[ServerReport], None] = lambda report: None,
        linger: float = 0.0,
    ) -> None:
        self.port: int = listener.getsockname()[1]
        read_reports, write_reports = os.pipe()
        self._reports = ReportReader(read_reports, on_report)
        reader, self._line = os.pipe()
        os.set_inheritable(reader, True)
        code = _PROGRAM.format(
            path=os.path.dirname(sys.modules[__name__.partition(".")[0]].__path__[0]),
            listener=listener.fileno(),
            pipe=reader,
        )
        settings = {
            "token": token,
            "run_id": run_id,
            "values": dict(values or {}),
            "linger": linger,
        }
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", code],
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=write_reports,
                pass_fds=[listener.fileno(), reader],
                start_new_session=True,
            )
            data = marshal.dumps(settings)
            os.write(self._line, len(data).to_bytes(4, "big") + data)
        except BaseException:
            os.close(self._line)
            raise
        finally:
            os.close(reader)
            os.close(write_reports)
            listener.close()

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        return self._process.poll()

    def close(self) -> None:
        """End the process; clients lose their connections. May be called twice."""
        line, self._line = self._line, -1
        if line < 0:
            return
        with contextlib.suppress(BrokenPipeError):  # it has ended
            os.write(line, b"\n")
        os.close(line)
        try:
            self._process.wait(_END_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reports.join()


def run_server(listener: int, pipe: int) -> None:
    """Serve until the launcher ends it or has ended. The whole program of the server's process.

    Args:
        listener: the descriptor of the listening socket.
        pipe: a descriptor from which the settings come, then a byte or the end.
    """
    from plaunch_job_store.authentication import Authenticator
    from plaunch_job_store.server import StoreServer
    from plaunch_job_store.table import StoreTable

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # meant for the launcher
    settings = marshal.loads(_read(pipe, int.from_bytes(_read(pipe, 4), "big")))  # noqa: S302 - the launcher's
    server = StoreServer(
        socket.socket(fileno=listener),
        Authenticator(settings["token"], settings["run_id"]),
        max_connections=_raise_descriptor_limit() - OTHER_DESCRIPTORS,
        table=StoreTable(settings["values"]),
        report=ReportFilter(ReportPipe(_STDOUT).write, time.monotonic),
    )

    def end() -> None:
        if os.read(pipe, 1):
            server.stop()
        else:
            server.finish(pipe, settings["linger"])

    server.watch(pipe, end)
    with contextlib.suppress(KeyboardInterrupt):
        server.serve()


def _raise_descriptor_limit() -> int:
    """Return how many descriptors this process may have, and use them; each client takes one."""
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _read(pipe: int, size: int) -> bytes:
    """Read so many bytes; end the process if the launcher has ended."""
    found = b""
    while len(found) < min(size, _MAX_SETTINGS):
        data = os.read(pipe, size - len(found))
        if not data:
            raise SystemExit(0)
        found += data
    return found
