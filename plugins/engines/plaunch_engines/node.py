"""The program on each node: an agent that is connected to the command that started it.

    python -m plaunch_engines.node FOLDER SCRIPT

It reports what it finds on this node, and waits for its settings: one line of JSON on its standard
input. Before that, the command may ask whether this node reaches the store that it offers. Then it
runs an agent. Further lines are signals. When standard input is closed, because the command or the
connection has ended, the job ends on this node.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import math
import os
import random
import select
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from plaunch.agent import Extension, WorkerState
from plaunch.errors import ExitCode, PlaunchError, RendezvousError, SignalException
from plaunch.plugin import hookimpl
from plaunch.rendezvous import JobOutcome
from plaunch.threads import start_thread
from plaunch_network import interface_addresses, is_loop_back

from plaunch_engines import records
from plaunch_engines.node_command import begin_path
from plaunch_engines.options import ENGINE_VARIABLE
from plaunch_engines.reporter import Reporter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import NoReturn

    from plaunch.agent import Control, GroupInfo, RunResult

_PORTS = (20000, 30000)  # below those that Linux gives to outgoing connections
_PORT_ATTEMPTS = 100
_MAX_ADDRESSES = 16
# After the connection has ended: seconds until the workers' grace is over, and until SIGKILL.
_GRACE, _LAST = 4.0, 7.0
_LOST = "the command that started this job has ended, or the connection to it"
_SLICES = 8  # of the time without a line: one in which this process was suspended counts once


def main(arguments: Sequence[str]) -> NoReturn:
    """Run one agent, and exit with its code."""
    from plaunch.cli import STDERR, end, end_at_signals, open_missing_streams

    folder, script = arguments
    end_at_signals()
    open_missing_streams()
    os.environ["PLAUNCH_LAUNCHER"] = str(os.getpid())  # as `plaunch` does: it owns this process
    connection = Connection()
    STDERR.write(records.encode("", kind="hello", **describe_node(folder, script)).decode())
    # Imported while the other nodes report.
    from plaunch.cli import concluded

    from plaunch_engines.store_probe import probe_stores

    settings = connection.receive()
    while settings is not None and "probe" in settings:
        reporter = Reporter(settings["nonce"], connection.stdout)
        for found in probe_stores(**settings["probe"]):
            reporter.report("probed", **found._asdict())
        settings = connection.receive()
    if settings is None:
        end(0)
    os.environ.pop(ENGINE_VARIABLE, None)  # some engines pass all variables
    os.environ.update(settings["env"])
    os.environ.pop("PLAUNCH_EXIT_CODE", None)  # the command reduces the code of the job
    os.environ["PATH"] = begin_path(os.environ.get("PATH", os.defpath), sys.executable)
    os.chdir(folder)
    if "stdin" in settings:
        put_stdin(base64.b64decode(settings["stdin"]))
    reporter = Reporter(settings["nonce"], connection.stdout)
    agent = ConnectedAgent(reporter)
    connection.listen(agent)
    code = concluded(lambda: agent.run(settings["arguments"]), reporter.report_last_message)
    agent.report_end(code)
    end(code)


def put_stdin(script: bytes) -> None:
    """Let the agent read a script from its stdin, as the command has read it."""
    with open(os.memfd_create("stdin"), "w+b") as file:
        file.write(script)
        file.seek(0)
        os.dup2(file.fileno(), 0)


def describe_node(folder: str, script: str) -> dict[str, object]:
    """Return what must be the same on all nodes, and what the command needs to know of this one.

    Args:
        folder: the working folder of the job.
        script: the script, which may be relative to it; empty if the program is not a file.
    """
    from plaunch import __version__

    return {
        "protocol": records.VERSION,
        "version": __version__,
        "python": ".".join(map(str, sys.version_info[:3])),
        # An engine that knows the address of the node sets the variable.
        "host": os.environ.pop("PLAUNCH_NODE_ADDRESS", "") or socket.gethostname(),
        "pid": os.getpid(),
        "has_folder": os.path.isdir(folder),
        "script": records.describe_script(folder, script),
        "port": find_port(),
        "addresses": find_addresses(),
        "client": os.environ.get("SSH_CONNECTION", "").partition(" ")[0],
    }


def find_addresses() -> list[str]:
    """Return the addresses of this node, without those of loopback if there are others."""
    found = [address for address in interface_addresses() if not address.startswith("fe80:")]
    usable = [address for address in found if not is_loop_back(address)]
    return (usable or found)[:_MAX_ADDRESSES]


def find_port() -> int:
    """Return a port at which no program of this node listens; 0 if there is none."""
    for _ in range(_PORT_ATTEMPTS):
        port = random.randrange(*_PORTS)  # noqa: S311 - not secret
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
            return port
    return 0


class ConnectedAgent(Extension):
    """The agent of this node, as the connection ends it and the command sees it.

    It is a plugin of its own launch.

    Args:
        reporter: reports to the command.
    """

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._control: Control | None = None
        self._ranks: set[int] = set()
        self._round = 0
        self._is_job_wide = False
        self._has_ended = False
        self._silence = ""  # why this node ends for a command that is silent
        self._has_succeeded = False
        self._verdict = ""  # how the job ended, according to its own record

    def run(self, arguments: Sequence[str]) -> None:
        """Run a command line; report an error to the command instead of printing it.

        Raises:
            SystemExit: with the exit code, after an error.
            SignalException: a signal has ended the job.
        """
        from plaunch.cli import run

        logging.getLogger("plaunch").addFilter(self._is_shown)
        try:
            run(arguments, plugins=[self], is_introduced=True)
        except SignalException:
            if not self._silence:
                raise
            self._reporter.report_failure(
                self._silence,
                code=ExitCode.COMMAND_SUSPENDED,
                is_first=False,
                is_of_workers=False,
                is_consequence=True,
            )
            raise SystemExit(ExitCode.COMMAND_SUSPENDED) from None
        except PlaunchError as error:
            if error.exit_code != ExitCode.OK:  # a spare that was not needed has not failed
                self._report_failure(error)
            raise SystemExit(error.exit_code) from None

    def _is_shown(self, record: logging.LogRecord) -> bool:
        """Whether the command shows a message as text; reports those that all nodes have."""
        if not (self._is_job_wide and getattr(record, "is_of_restart", False)):
            return True
        text = record.getMessage()[: records.MAX_PART]
        self._reporter.report("restarted", round=self._round, text=text)
        return False

    def _report_failure(self, error: PlaunchError) -> None:
        first = getattr(error, "get_first_failure", None)
        rank, failure = first() if first is not None else (None, None)
        misses_others = isinstance(error, RendezvousError)
        if failure is not None:
            misses_others = failure.is_consequence
        self._reporter.report_failure(
            getattr(error, "for_console", error.__str__)(),
            code=int(error.exit_code),
            is_first=rank in self._ranks,
            is_of_workers=rank is not None,
            is_consequence=misses_others and self._verdict != JobOutcome.FAILED,
        )

    def report_end(self, code: int) -> None:
        """Report the exit code, and what is known of the end of the job."""
        self._reporter.finish(
            code,
            has_succeeded=self._has_succeeded and code == ExitCode.OK,
            verdict=self._verdict,
        )

    def end_for_silence(self, seconds: float) -> None:
        """Let this node leave the job, as nothing has come from the command for so long."""
        self._silence = (
            f"nothing has come from the command for {seconds:g} s (--silence-limit): it was "
            "suspended, or the connection to it is interrupted"
        )
        self.leave(self._silence)

    def leave(self, reason: str) -> None:
        """Let this node leave the job; thread-safe. A stop in progress is not hurried."""
        control = self._control
        if control is not None:
            control.request("leave", reason)
        elif not self._has_ended:  # there is no agent yet
            os.kill(os.getpid(), signal.SIGTERM)

    # --- as a plugin ------------------------------------------------------------------------------

    takes_events = False
    known_as = "plaunch --on"

    @hookimpl
    def plaunch_extensions(self, context: object) -> Iterable[ConnectedAgent]:
        """Return the extension that requests the end."""
        del context
        return [self]

    def start(self, control: Control) -> None:
        """Keep the control of the agent."""
        self._control = control
        self._is_job_wide = control.snapshot().is_job_wide

    def stop(self, result: RunResult | None) -> None:
        """Keep how the job and this node have ended, and forget the agent."""
        control, self._control = self._control, None
        self._has_ended = True
        self._has_succeeded = result is not None and result.state is WorkerState.SUCCEEDED
        now = control.snapshot() if control is not None else None
        if now is not None and now.is_job_wide and now.verdict is not None:
            self._verdict = now.verdict.value

    @hookimpl
    def plaunch_workers_started(self, group: GroupInfo) -> None:
        """Report the round that begins."""
        self._ranks.update(worker.global_rank for worker in group.workers)
        self._round = group.round
        self._reporter.report(
            "running",
            round=group.round,
            is_job_wide=self._is_job_wide,
            attempt=group.attempt,
            nodes=group.group_world_size,
            workers=group.workers[0].world_size,
        )

    @hookimpl
    def plaunch_agent_finished(self, group: GroupInfo) -> None:
        """Report that the workers of this node have ended for the last time."""
        del group
        self._reporter.report("workers_ended")


class Connection:
    """The connection to the command: this process's standard input, which workers do not get.

    An engine whose connections may end without notice sets the variable PLAUNCH_NODE_SILENCE, and
    sends an empty line now and then: after so many seconds without a line, the connection has
    ended.

    Attributes:
        stdout: a copy of this process's standard output, which workers do not get.
    """

    def __init__(self) -> None:
        self._silence = float(os.environ.pop("PLAUNCH_NODE_SILENCE", "") or "inf")
        self._is_silent = False
        self._fd = os.dup(0)
        self.stdout = os.dup(1)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        self._lines = self._read()

    def receive(self) -> dict[str, Any] | None:
        """Wait for the next line; None at the end of the connection."""
        return next(self._lines, None)

    def listen(self, agent: ConnectedAgent) -> None:
        """Receive signals on a thread, and end the agent when the connection ends."""
        thread = threading.Thread(
            target=self._listen, args=(agent,), name="plaunch-connection", daemon=True
        )
        start_thread(thread, blocks_signals=True)

    def _listen(self, agent: ConnectedAgent) -> None:
        for message in self._lines:
            if "leave" in message:
                agent.leave(message["leave"])
            else:
                os.kill(os.getpid(), message["signal"])
        began = time.monotonic()
        if self._is_silent:
            agent.end_for_silence(self._silence)
        else:
            agent.leave(_LOST)
        time.sleep(_GRACE)
        os.kill(os.getpid(), signal.SIGTERM)  # the second request ends the grace
        time.sleep(began + _LAST - time.monotonic())
        os.kill(os.getpid(), signal.SIGKILL)  # the guard ends the workers
        os._exit(128 + signal.SIGKILL)  # the first process of a container gets no SIGKILL from it

    def _is_readable(self) -> bool:
        """Wait for data, or the end; return whether there is something within the time."""
        pause = None if math.isinf(self._silence) else self._silence / _SLICES
        return any(select.select([self._fd], [], [], pause)[0] for _ in range(_SLICES))

    def _read(self) -> Iterator[dict[str, Any]]:
        buffer = b""
        while True:
            if not self._is_readable():
                self._is_silent = True
                return
            try:
                data = os.read(self._fd, 65536)
            except OSError:
                return
            if not data:
                return
            *lines, buffer = (buffer + data).split(b"\n")
            yield from map(json.loads, filter(None, lines))


if __name__ == "__main__":
    main(sys.argv[1:])
