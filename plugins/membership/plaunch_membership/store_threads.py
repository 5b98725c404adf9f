"""The threads of one node over its store, and what happens when they are stuck."""

from __future__ import annotations

import logging
import secrets
import time
from typing import TYPE_CHECKING

from plaunch.errors import RendezvousConnectionError

from plaunch_membership.job_lookup import JobLookup
from plaunch_membership.leader import Leader
from plaunch_membership.runner import Runner
from plaunch_membership.watcher import Watcher
from plaunch_membership.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch_membership.membership import Membership
    from plaunch_membership.operations import Routine
    from plaunch_membership.store import Connect

_log = logging.getLogger("plaunch")

_GLANCE = 1.0  # seconds between two looks at threads that may be stuck
_END_WAIT = 0.5  # seconds for threads whose connections were closed
_STUCK = 6.0  # seconds after which an operation of the store is not waited for any longer


class StoreThreads:
    """Runs the routines of a membership, each on a thread and a connection of its own.

    A routine goes on under the lock of its runner, and takes that of the membership when it likes.
    So runners are stopped and renewed without the membership's lock: `supervise` and `dismiss` are
    not for those who hold it.

    Args:
        membership: what the routines share; its lock guards this object, too.
        connect: opens another connection to the store; tests put their own in its place.
        endpoint: what messages call the store.
        hold_port: holds a port for the workers' store, and returns its number.
    """

    def __init__(
        self,
        membership: Membership,
        connect: Connect,
        endpoint: str,
        *,
        hold_port: Callable[[], int],
    ) -> None:
        self._membership = membership
        self._timing = membership.timing
        self.connect = connect
        self._endpoint = endpoint
        self._lock = membership.lock
        lookup = JobLookup(membership, make_name=lambda: secrets.token_hex(6))
        self.writer = Writer(membership, lookup, hold_port)
        self._writing: Runner | None = None
        self._watching: Runner | None = None
        self._leading: Runner | None = None
        self._led = 0  # the incarnation that the leader's routine is for
        self._is_over = False
        self._glanced_at = 0.0
        membership.nudge = self._nudge

    def start(self) -> None:
        """Start to write, unless that has begun; the others follow when there is a job."""
        with self._lock:
            if self._writing is None:
                self._writing = self._run("writer", self.writer.write(self._opened))

    def supervise(self) -> None:
        """Replace threads that a dead connection keeps from coming back."""
        now = time.monotonic()
        with self._lock:
            if now - self._glanced_at < _GLANCE:
                return
            self._glanced_at = now
        bound = max(_STUCK, 3 * self._timing.keep_alive_interval)
        if all(runner.overdue() <= bound for runner in self._runners()):
            return
        _log.info("the store at %s does not answer; connecting again", self._endpoint)
        # What is stuck shows that the connections are dead; the others only do not know yet.
        for runner in self._runners():
            runner.renew()

    def failing(self) -> object:
        """The reason why the store cannot be reached now; None if it can, or was not tried."""
        return None if self._writing is None else self._writing.problem

    def explain_unreached(self) -> RendezvousConnectionError:
        """Why no job was found in time."""
        failing = self.failing()
        cause = "" if failing is None else f": {failing}"
        return RendezvousConnectionError(
            f"the store at {self._endpoint} could not be reached within "
            f"{self._timing.join_timeout:g} s (--rdzv-conf join_timeout){cause}"
        )

    def problem(self) -> str | None:
        """Why the job cannot be reached, once it has lasted too long."""
        writer = self._writing
        if writer is None or self._membership.state is None or self._is_over:
            return None
        # One alone may have no answer, to what only it asks.
        slowest = max(self._runners(), key=lambda runner: runner.silent_for(), default=writer)
        silent, problem = slowest.silent_for(), slowest.problem
        if silent <= self._timing.unreachable_timeout:
            return None
        cause = f": {problem}" if problem is not None else ""
        return (
            f"the store at {self._endpoint} has not answered for {silent:.0f} s "
            f"(--rdzv-conf unreachable_timeout={self._timing.unreachable_timeout:g}){cause}"
        )

    def raise_error(self) -> None:
        """Raise why this node can have no part in the job, if that is so."""
        excluded = self._membership.exclusion()
        if excluded is not None:
            raise excluded
        if self._membership.news.error is not None:
            raise self._membership.news.error
        problem = self.problem()
        if problem is not None:
            raise RendezvousConnectionError(problem)

    def dismiss(self, patience: float) -> bool:
        """End all threads, the writer when it is through.

        Returns:
            Whether the writer has said all that it had to, within `patience` seconds. So it has if
            the store has gone first, as it does when its host does: no node is left to be notified.
        """
        with self._lock:
            self._is_over = True
            writer = self._writing
        is_through, problem = True, None
        if writer is not None:
            is_in = self._membership.state is not None
            if not is_in and not self._membership.requests:
                writer.stop()  # it still tries to connect
            clock = self._membership.clock
            deadline = clock() + patience
            while not (is_through := writer.join(0.05)) and clock() < deadline:
                if (problem := writer.problem) is not None:
                    break
            if problem is not None and is_in and self._membership.news.verdict is None:
                _log.info(
                    "the other nodes could not be told that this node leaves job %r: %s",
                    self._membership.identity.run_id,
                    problem,
                )
            # Who has never come need not say that it goes.
            is_through = is_through or problem is not None or not is_in
        for runner in self._runners():
            runner.stop()
        self.join(_END_WAIT)
        return is_through

    def join(self, timeout: float) -> bool:
        """Wait for all threads to end, which were dismissed; False if one has not."""
        until = time.monotonic() + timeout
        return all(runner.join(max(until - time.monotonic(), 0)) for runner in self._runners())

    def _opened(self) -> None:
        """There is a job to watch: called by the writer, maybe again."""
        with self._lock:
            if self._is_over:
                return
            previous = self._watching
            self._watching = self._run("watcher", Watcher(self._membership).watch())
        if previous is not None:
            previous.stop()
        self._lead()

    def _lead(self) -> None:
        """Start the leader's routine, if this node leads."""
        with self._lock:
            state, incarnation = self._membership.state, self._membership.job.incarnation
            if (
                self._is_over
                or state is None
                or state.leader != self._membership.me
                or (self._leading is not None and self._led == incarnation)
            ):
                return
            previous = self._leading
            self._led = incarnation
            self._leading = self._run("leader", Leader(self._membership).lead())
        if previous is not None:
            previous.stop()

    def _run(self, name: str, routine: Routine[None]) -> Runner:
        def ended(error: BaseException | None) -> None:
            with self._lock:
                if self._leading is runner:
                    self._leading = None
                if error is not None and self._membership.news.error is None:
                    self._membership.news.error = error
                self._lock.notify_all()
            if error is not None:
                self._membership.news.wake_agent()

        runner = Runner(name, routine, self.connect, ended, clock=self._membership.clock)
        runner.start()
        return runner

    def _runners(self) -> list[Runner]:
        return [r for r in (self._writing, self._watching, self._leading) if r is not None]

    def _nudge(self) -> None:
        self._lead()
        for runner in self._runners():
            runner.nudge()
