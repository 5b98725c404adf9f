"""Runs the server of a job's store in a process of its own, next to the launcher."""

from __future__ import annotations

import contextlib
import marshal
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

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


class ServerDeath(NamedTuple):
    """A server's process has ended although it should run.

    Args:
        pid: its id.
        exit_code: negative for a signal.
        incarnation: its number.
        is_final: whether it has no successor, as too many have ended in a short time.
        problem: why the last one could not be started; empty if it was.
    """

    pid: int
    exit_code: int
    incarnation: int
    is_final: bool
    problem: str = ""

    def describe(self, host: str) -> str:
        """Return a message; `host` is what hosts the store: "this node"."""
        from plaunch.process import describe_exit  # the server's process does without

        text = (
            f"the process of the rendezvous store (pid {self.pid}), which {host} hosts, has ended "
            f"({describe_exit(self.exit_code)})"
        )
        if self.problem:
            text += f", and its successor could not be started ({self.problem})"
        if self.is_final:
            return f"{text}; it is not replaced again, as this has happened too often"
        return f"{text}; its successor has started, and the nodes form another round"


class SuccessorBounds(NamedTuple):
    """How often a server's process is replaced.

    Args:
        deaths: the number of deaths after which there is no successor.
        within: the seconds in which they must have happened.
        retry: seconds until another attempt after one could not be started, which counts as well.
    """

    deaths: int = 3
    within: float = 60.0
    retry: float = 0.3


class StoreProcess:
    """The server of a store in a process of its own, until `close` or the end of this process.

    If the process dies, for example because the kernel needs memory, a successor serves the same
    listening socket. It starts as soon as the dead one has been waited for, and never before. It
    has no data: it refuses the sessions of its predecessor, so that clients notice.

    Args:
        listener: the listening socket to serve; it belongs to this object from now on.
        token: the job's token, or None.
        run_id: the id of the job.
        environ: the variables of the process; without secrets.
        values: what the store holds at first.
        on_report: called on a thread of its own with what the server reports.
        linger: if this process ends without `close`, seconds until the server ends, too; it ends
            before that once no client is connected.
        on_death: called on a thread of its own after a process has died, and its successor has been
            started.
        bounds: how often there is a successor; None for the usual ones.
        clock: a monotonic clock, in seconds.

    Raises:
        OSError: the process cannot be started.
        ThreadStartError: the system has no more threads.
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
        on_death: Callable[[ServerDeath], None] = lambda death: None,
        bounds: SuccessorBounds | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.port: int = listener.getsockname()[1]
        self._listener = listener
        self._settings = {
            "token": token,
            "run_id": run_id,
            "values": dict(values or {}),
            "linger": linger,
        }
        self._environ = dict(environ)
        self._on_report = on_report
        self._on_death = on_death
        self._bounds = bounds or SuccessorBounds()
        self._clock = clock
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._incarnation = 0
        self.final_death: ServerDeath | None = None  # why there is no server any more
        try:
            self._server = self._start()
            _OPEN.add(self)
            self._keeper = threading.Thread(
                target=self._keep, name="plaunch-store-host", daemon=True
            )
            from plaunch.threads import start_thread  # the server's process does without

            try:
                start_thread(self._keeper, blocks_signals=True)
            except BaseException:
                self._server.end()
                self._server.process.wait()
                raise
        except BaseException:
            listener.close()
            raise

    @property
    def pid(self) -> int:
        """The id of the current process."""
        return self._server.process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code of the current process, negative for a signal; None while it runs."""
        return self._server.process.returncode

    def close(self) -> None:
        """End the process; clients lose their connections. May be called twice."""
        self._closing.set()
        with self._lock:
            self._listener.close()
            self._server.end()
        self._keeper.join(_END_TIMEOUT)
        if self._keeper.is_alive():
            self._server.process.kill()
            self._keeper.join()
        self._server.reports.join()

    def close_in_child(self) -> None:
        """Close the descriptors in a forked process, which would keep the store from ending."""
        self._listener.close()
        self._server.release()

    def _start(self) -> _ServerProcess:
        self._incarnation += 1
        settings = {**self._settings, "incarnation": self._incarnation}
        return _ServerProcess(self._listener.fileno(), settings, self._environ, self._on_report)

    def _keep(self) -> None:
        """Replace each process that dies, until `close`, or until too many have died."""
        deaths: deque[float] = deque(maxlen=self._bounds.deaths)
        while True:
            server, incarnation = self._server, self._incarnation
            server.process.wait()
            problem = ""
            with self._lock:
                if self._closing.is_set():
                    return
                server.release()
                is_final = self._is_last(deaths)
                while not is_final:
                    try:
                        self._server = self._start()
                        break
                    except (OSError, RuntimeError) as error:
                        problem = str(error)
                    if self._closing.wait(self._bounds.retry):
                        return
                    is_final = self._is_last(deaths)
                death = ServerDeath(
                    server.process.pid, server.process.returncode, incarnation, is_final, problem
                )
                if is_final:
                    self.final_death = death
                    self._listener.close()  # connections are refused from now on
            server.reports.join()
            self._on_death(death)
            if is_final:
                return

    def _is_last(self, deaths: deque[float]) -> bool:
        """Note a death; return whether there have been too many."""
        deaths.append(self._clock())
        return len(deaths) == self._bounds.deaths and deaths[-1] - deaths[0] < self._bounds.within


class _ServerProcess:
    """One process that serves the socket, and the pipes to it.

    Args:
        listener: the descriptor of the listening socket.
        settings: what the process reads at first.
        environ: its variables.
        on_report: see `StoreProcess`.
    """

    def __init__(
        self,
        listener: int,
        settings: Mapping[str, object],
        environ: Mapping[str, str],
        on_report: Callable[[ServerReport], None],
    ) -> None:
        read_reports, write_reports = os.pipe()
        self.reports = ReportReader(read_reports, on_report)
        reader, self._line = os.pipe()
        os.set_inheritable(reader, True)
        code = _PROGRAM.format(
            path=os.path.dirname(sys.modules[__name__.partition(".")[0]].__path__[0]),
            listener=listener,
            pipe=reader,
        )
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", code],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=write_reports,
                pass_fds=[listener, reader],
                start_new_session=True,
            )
            data = marshal.dumps(dict(settings))
            os.write(self._line, len(data).to_bytes(4, "big") + data)
        except BaseException:
            self.end()
            raise
        finally:
            os.close(reader)
            os.close(write_reports)

    def end(self) -> None:
        """Let the process end. May be called twice."""
        if self._line >= 0:
            with contextlib.suppress(BrokenPipeError):  # it has ended
                os.write(self._line, b"\n")
        self.release()

    def release(self) -> None:
        """Close the pipe to the process."""
        line, self._line = self._line, -1
        if line >= 0:
            os.close(line)


# All open ones, for a fork: a forked worker would keep the port, and the server at its pipe.
_OPEN: weakref.WeakSet[StoreProcess] = weakref.WeakSet()


def _close_in_child() -> None:
    for process in tuple(_OPEN):
        process.close_in_child()


os.register_at_fork(after_in_child=_close_in_child)


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
        incarnation=settings["incarnation"],
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
