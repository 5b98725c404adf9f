"""Supervises the fork server: starts it, replaces it after its end, and ends it with the launch."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from plaunch.plugin import one_line

from plaunch_preload.fork_server import ForkServer, ForkServerError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from plaunch_preload.command import Command
    from plaunch_preload.fork_server import Imports

_PROBE_TIMEOUT = 10.0  # seconds for an interpreter to start
_MIN_PYTHON = (3, 10)  # the oldest supported Python of workers
_DEATHS, _DEATHS_PERIOD = 3, 600.0  # give up after this many deaths in this many seconds
_JOIN_TIMEOUT = 3.0  # seconds for the thread to end
_MAX_SHOWN = 200  # characters of the modules' output


class ForkServerSupervisor:
    """A thread that runs one fork server at a time.

    Args:
        command: the command of the workers.
        env: the variables that they have in common.
        modules: the modules that the fork server imports.
        timeout: the limit of the imports, in seconds.
        warn: logs a warning in one line.
    """

    def __init__(
        self,
        command: Command,
        env: Mapping[str, str],
        modules: Sequence[str],
        timeout: float,
        warn: Callable[[str], None],
    ) -> None:
        self.imports: Imports | None = None  # of the last fork server
        self.env = dict(env)
        self._command = command
        self._modules = tuple(modules)
        self._timeout = timeout
        self._warn = warn
        self._changed = threading.Condition()
        self._server: ForkServer | None = None
        self._is_ready = False
        self._is_awaited = True  # whether workers wait for the current imports
        self._is_renewed = False
        self._is_closed = False
        self._deaths: deque[float] = deque(maxlen=_DEATHS)
        self._thread = threading.Thread(target=self._run, name="plaunch-preload", daemon=True)

    def start(self) -> None:
        """Start the fork server; its imports run in the background.

        Raises:
            RuntimeError: the system gives no more threads.
        """
        self._thread.start()

    def wait(self) -> None:
        """Wait for the current imports, unless they replace those of a dead server."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_awaited or self._is_closed)

    def find(self) -> ForkServer | None:
        """Return the fork server, if it has imported its modules and is running."""
        with self._changed:
            return self._server if self._is_ready else None

    def renew(self, env: Mapping[str, str] | None = None, *, is_awaited: bool) -> None:
        """Replace the fork server by another one.

        Args:
            env: its variables; by default those of the last one.
            is_awaited: whether the next workers wait for its imports.
        """
        with self._changed:
            server, self._is_ready = self._server, False
            self._is_renewed, self._is_awaited = True, is_awaited
            if env is not None:
                self.env = dict(env)
        if server is not None:
            server.close()

    def close(self) -> None:
        """End the fork server; workers continue."""
        with self._changed:
            self._is_closed = True
            server, self._is_ready = self._server, False
            self._changed.notify_all()
        if server is not None:
            server.close()
        if self._thread.is_alive():
            self._thread.join(_JOIN_TIMEOUT)

    # --- on the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._probe():
                pass
            while self._is_wanted() and self._run_server():
                pass
        except ForkServerError as error:
            self._refuse(str(error))
        except OSError as error:
            self._refuse(f"it cannot be started: {one_line(error)}")
        finally:
            with self._changed:
                self._is_ready = self._is_awaited = False
                self._changed.notify_all()

    def _probe(self) -> bool:
        """Check that the interpreter reaches the fork server's code; False if a retry is needed.

        If it does not, it would run the program as a process without a launcher.
        """
        server = self._new_server(is_probe=True)
        try:
            version = server.probe(_PROBE_TIMEOUT)
        except ForkServerError as error:
            if not self._is_wanted():
                return True
            if server.was_killed():
                self._note_death(server, "was killed while it started")
                return False
            raise ForkServerError(
                f"{self._command.interpreter[0]!r} does not import sitecustomize from PYTHONPATH, "
                f"which starts a fork server: {error}"
            ) from error
        finally:
            server.release()
        if version < _MIN_PYTHON:
            raise ForkServerError(
                f"the workers' Python is {'.'.join(map(str, version))}, and a fork server needs "
                f"{'.'.join(map(str, _MIN_PYTHON))}"
            )
        return True

    def _new_server(self, *, is_probe: bool = False) -> ForkServer:
        server = ForkServer(self._command, self.env, self._modules, is_probe=is_probe)
        with self._changed:
            self._server = server
            self._is_renewed = False
            is_closed = self._is_closed
        if is_closed:
            server.close()
        return server

    def _run_server(self) -> bool:
        """Run one fork server until it exits; returns whether to start another one."""
        server = self._new_server()
        try:
            if self._load(server):
                server.wait()
                if self._is_wanted() and not self._is_renewed:
                    self._note_death(server, "has ended")
            return self._is_wanted()
        finally:
            with self._changed:
                self._is_ready = False
            server.release()

    def _load(self, server: ForkServer) -> bool:
        """Wait for the imports; returns whether workers may be forked."""
        try:
            imports = server.load(self._timeout)
        except ForkServerError:
            if not self._is_wanted() or self._is_renewed:
                return False
            if not server.was_killed():
                raise
            self._note_death(server, "was killed while it imported")
            return False
        if imports.problems:
            raise ForkServerError("; ".join(imports.problems))
        with self._changed:
            self.imports = imports
            self._is_ready = not self._is_renewed and not self._is_closed
            self._is_awaited = self._is_renewed
            self._changed.notify_all()
        text = " ".join(imports.output.split())
        if text:
            self._warn(f"the modules wrote {text[:_MAX_SHOWN]!r} while they were imported")
        return self._is_ready

    def _is_wanted(self) -> bool:
        with self._changed:
            return not self._is_closed

    def _note_death(self, server: ForkServer, what: str) -> None:
        """Report the death of a fork server; the next workers do not wait for its replacement.

        Raises:
            ForkServerError: too many have died.
        """
        now = time.monotonic()
        is_enough = len(self._deaths) == _DEATHS and now - self._deaths[0] < _DEATHS_PERIOD
        self._deaths.append(now)
        how = f"the fork server (pid {server.pid}) {what} ({server.describe_end()})"
        if is_enough:
            raise ForkServerError(f"{how}, as {_DEATHS} others did")
        self._warn(f"{how}; another one is started, and workers are started afresh meanwhile")
        with self._changed:
            self._is_awaited = False
            self._changed.notify_all()

    def _refuse(self, why: str) -> None:
        with self._changed:
            is_closed = self._is_closed
        if not is_closed:
            self._warn(f"workers are started afresh: {why}")
