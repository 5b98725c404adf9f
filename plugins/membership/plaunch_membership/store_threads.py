"""The threads of a node that use the store, and how they recover when they are stuck."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING

from plaunch.errors import (
    RendezvousConnectionError,
    RendezvousError,
    RendezvousTimeoutError,
)

from plaunch_membership.job_lookup import JobLookup
from plaunch_membership.leader import LeaderRoutine
from plaunch_membership.options import WAIT_BOUNDS
from plaunch_membership.outage import OutageReporter
from plaunch_membership.runner import Runner
from plaunch_membership.store import StoreNotListeningError
from plaunch_membership.watcher import WatcherRoutine
from plaunch_membership.writer import WriterRoutine

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch_membership.membership import Membership
    from plaunch_membership.operations import Routine
    from plaunch_membership.options import WaitBounds
    from plaunch_membership.store import StoreAccess

_log = logging.getLogger("plaunch")

_JOIN_TIMEOUT = 0.5  # seconds for threads to end after their connections were closed


class StoreThreads:
    """Runs the routines of a membership, each on its own thread and connection.

    A routine runs under the lock of its runner, and takes the membership's lock when it needs it.
    Runners are therefore stopped and renewed without the membership's lock: never call `supervise`
    or `stop` while holding it.

    Args:
        membership: the state that the routines share; its lock guards this object, too.
        store: how to reach the store.
        hold_port: reserves a port for the workers' store, and returns its number.
        bounds: the intervals of checks.
    """

    def __init__(
        self,
        membership: Membership,
        store: StoreAccess,
        *,
        hold_port: Callable[[], int],
        bounds: WaitBounds = WAIT_BOUNDS,
    ) -> None:
        self._membership = membership
        self._timing = membership.timing
        self.connect = store.connect  # tests wrap it
        self._endpoint = store.endpoint
        self._outage = OutageReporter(
            store.endpoint, membership.clock, wake_agent=membership.news.wake_agent
        )
        self._outlives_job = store.outlives_job
        self._bounds = bounds
        self._lock = membership.lock
        lookup = JobLookup(membership, make_name=lambda: os.urandom(6).hex())
        self.writer = WriterRoutine(membership, lookup, hold_port)
        self._writing: Runner | None = None
        self._watching: Runner | None = None
        self._leading: Runner | None = None
        self._led = 0  # the incarnation of the leader's routine
        self._is_over = False
        self._checked_at = 0.0
        membership.on_nudge(self._nudge)
        if store.subscribe is not None:
            store.subscribe(self.check_heartbeats)

    def start(self) -> None:
        """Start the writer, unless it runs; the other threads start when there is a job."""
        with self._lock:
            if self._writing is None:
                self._writing = self._run("writer", self.writer.write(self._opened))

    def supervise(self) -> None:
        """Replace threads that are stuck on a dead connection."""
        now = time.monotonic()
        with self._lock:
            if now - self._checked_at < self._bounds.check_interval:
                return
            self._checked_at = now
        bound = max(self._bounds.stuck_after, 3 * self._timing.keep_alive_interval)
        if all(runner.overdue() <= bound for runner in self.runners()):
            return
        self._outage.reconnecting()
        # One stuck thread shows that the connections are dead, even if the others have not noticed.
        for runner in self.runners():
            runner.renew()

    def check_heartbeats(self) -> None:
        """Send and check heartbeats now; thread-safe."""
        self.writer.is_beat_due = True
        if self._writing is not None:
            self._writing.nudge()

    def failing(self) -> RendezvousConnectionError | None:
        """The error of the last attempt to reach the store; None if it succeeded."""
        return None if self._writing is None else self._writing.problem

    def explain_unreached(self) -> RendezvousError:
        """Return the error for a job that was not found in time."""
        failing = self.failing()
        cause = "" if failing is None else f": {failing}"
        return self._unreachable(
            f"the store at {self._endpoint} could not be reached within "
            f"{self._timing.join_timeout:g} s (--rdzv-conf join_timeout){cause}"
        )

    def _unreachable(self, text: str) -> RendezvousError:
        """Return the error for a store that cannot be reached.

        If one of the nodes hosts it and no round was formed yet, the nodes have not met. So this
        node ends as the host does, which misses this node. If the store has lost its data before,
        the store is the cause, not a missing node.
        """
        state = self._membership.state
        has_world = state is not None and state.world is not None
        have_met = has_world or self._membership.memory.nodes > 0  # perhaps before a loss of data
        if self._outlives_job or have_met or self._membership.has_lost_data():
            return RendezvousConnectionError(text)
        return RendezvousTimeoutError(f"no round was formed: {text}")

    def problem(self) -> str | None:
        """Why the job is unreachable, once that has lasted for `unreachable_timeout`."""
        writer = self._writing
        if writer is None or self._membership.state is None or self._is_over:
            return None
        # A single thread may be without an answer, to a request that only it makes.
        slowest = max(self.runners(), key=lambda runner: runner.silent_for(), default=writer)
        silent, problem = slowest.silent_for(), slowest.problem
        option, limit = "unreachable_timeout", self._timing.unreachable_timeout
        if isinstance(problem, StoreNotListeningError) and self._timing.refused_timeout < limit:
            option, limit = "refused_timeout", self._timing.refused_timeout
        if silent <= limit:
            return None
        cause = f": {problem}" if problem is not None else ""
        return (
            f"the store at {self._endpoint} has not answered for {silent:.0f} s "
            f"(--rdzv-conf {option}={limit:g}){cause}"
        )

    def raise_error(self) -> None:
        """Raise the error that prevents this node from taking part, if there is one."""
        excluded = self._membership.exclusion()
        if excluded is not None:
            raise excluded
        if self._membership.news.error is not None:
            raise self._membership.news.error
        problem = self.problem()
        if problem is not None:
            raise self._unreachable(problem)

    def stop(self, patience: float) -> bool:
        """Stop all threads, the writer after its pending requests.

        Returns:
            Whether the writer has processed all requests within `patience` seconds. This is also
            True if the store fails first, as when its host is gone: then no node is left to be
            notified.
        """
        with self._lock:
            self._is_over = True
            writer = self._writing
        is_finished, problem = True, None
        if writer is not None:
            has_joined = self._membership.state is not None
            if not has_joined and not self._membership.requests:
                writer.stop()  # it still tries to connect
            clock = self._membership.clock
            deadline = clock() + patience
            while not (is_finished := writer.join(0.05)) and clock() < deadline:
                if (problem := writer.problem) is not None:
                    break
            if problem is not None and has_joined and self._membership.news.verdict is None:
                _log.info(
                    "the other nodes could not be notified that this node leaves job %r: %s",
                    self._membership.identity.run_id,
                    problem,
                )
            # A node that has never joined need not announce its departure.
            is_finished = is_finished or problem is not None or not has_joined
        for runner in self.runners():
            runner.stop()
        self.join(_JOIN_TIMEOUT)
        return is_finished

    def join(self, timeout: float) -> bool:
        """Wait for all threads to end; False if one has not."""
        until = time.monotonic() + timeout
        return all(runner.join(max(until - time.monotonic(), 0)) for runner in self.runners())

    def _opened(self) -> None:
        """Start the watcher; called by the writer each time it has found a job."""
        with self._lock:
            if self._is_over:
                return
            previous = self._watching
            self._watching = self._run("watcher", WatcherRoutine(self._membership).watch())
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
            self._leading = self._run("leader", LeaderRoutine(self._membership).lead())
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

        runner = Runner(
            name,
            routine,
            self.connect,
            ended,
            outage=self._outage,
            clock=self._membership.clock,
        )
        runner.start()
        return runner

    def runners(self) -> list[Runner]:
        """The runners of the threads that have been started, the writer's first."""
        return [r for r in (self._writing, self._watching, self._leading) if r is not None]

    def _nudge(self) -> None:
        self._lead()
        for runner in self.runners():
            runner.nudge()
