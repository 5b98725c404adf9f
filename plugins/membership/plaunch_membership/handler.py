"""A rendezvous handler over any store, used by most backends."""

from __future__ import annotations

import atexit
import logging
import os
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from plaunch.errors import RendezvousClosedError, UsageError
from plaunch.rendezvous import ChangeKind, JobOutcome, MembershipChange, RendezvousHandler

from plaunch_membership.host_stay import FAREWELL
from plaunch_membership.job_connection import JobConnection
from plaunch_membership.liveness import AwakeClock, late_after
from plaunch_membership.membership import Membership
from plaunch_membership.node import NodeIdentity
from plaunch_membership.options import WAIT_BOUNDS, Timing, read_token, warn_of_short_token
from plaunch_membership.process_failures import to_job_failures, to_verdict
from plaunch_membership.records import RecordCodec
from plaunch_membership.shared import ReservedPort, WakePipe
from plaunch_membership.state import JobEventKind, JobPhase, verdict_error
from plaunch_membership.store import StoreAccess

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from plaunch.errors import RendezvousTimeoutError
    from plaunch.process import ProcessFailure
    from plaunch.rendezvous import JobRound, NodeSettings, RendezvousParameters, Verdict

    from plaunch_membership.node import RoundPlace
    from plaunch_membership.options import WaitBounds
    from plaunch_membership.store import Connect
    from plaunch_membership.texts import NodeTexts

_log = logging.getLogger("plaunch")

# A suspension must still look like one to observers, or they count it as silence.
_MAX_STEP = 1.5  # times the delay from which an observation is late


class DynamicRendezvousHandler(RendezvousHandler):
    """Forms rounds of nodes over a store; implements `JobRendezvous`.

    It connects when the first round is requested, never on the caller's thread, and no call blocks
    for longer than its timeout. The name is torchrun's, the arguments are not.

    Args:
        params: the parameters of the rendezvous.
        store: how to reach the store of the job.
        options: the names of the backend's own `--rdzv-conf` options.
        timing: the options that all backends share, if the backend has read them already; `options`
            is ignored then.
        bounds: the times that no option sets.
        clock: a monotonic clock, in seconds.
        access: the fields of `StoreAccess`, if `store` is only the function that connects. For
            callers written before there was a `StoreAccess`; will be removed.

    Attributes:
        job: the connection to the current job.

    Raises:
        UsageError: an option is unknown or invalid, or the token cannot be read.
    """

    def __init__(
        self,
        params: RendezvousParameters,
        store: StoreAccess | Connect,
        *,
        options: Collection[str] = (),
        timing: Timing | None = None,
        bounds: WaitBounds = WAIT_BOUNDS,
        clock: Callable[[], float] = time.monotonic,
        **access: Any,
    ) -> None:
        if not isinstance(store, StoreAccess):
            store = StoreAccess(store, **access)
        self._store = replace(store, endpoint=store.endpoint or params.endpoint)
        self._release = store.release
        self._params = params
        self._run_id = params.run_id
        self._endpoint = self._store.endpoint
        self._timing = timing or Timing.from_parameters(params, options)
        self._bounds = bounds
        self._port = ReservedPort(params.job.port_range)
        # Time in which this process was suspended must not count as silence of the others.
        self._clock = AwakeClock(_MAX_STEP * late_after(self._timing.keep_alive_interval), clock)
        token = read_token(params, os.environ)
        warn_of_short_token(token)
        self._codec = RecordCodec(params.run_id, token)
        self._pipe = WakePipe()
        self._is_over = False
        self._has_closed = False  # by `set_closed`
        self.job = self._connect(NodeIdentity.of_this_process(params, store.address))
        if store.outlives_job and params.run_id == "none":
            _log.warning(
                "the run id is 'none', the default, and the store at %s outlives the job: another "
                "job without a run id would join this one; set one with --rdzv-id",
                self._endpoint,
            )

    def _connect(self, identity: NodeIdentity, follows: str = "") -> JobConnection:
        """Create the connection to one job; `follows` is the incarnation of an earlier one."""
        membership = Membership(
            identity,
            self._timing,
            self._codec,
            clock=self._clock,
            follows=follows,
            wake_agent=self._pipe.wake,
            absence_is_loss=self._store.subscribe is not None,
            hosts_store=self._store.hosts_store,
            has_lost_data=self._store.has_lost_data,
        )
        return JobConnection(membership, self._store, self._bounds, self._port.hold)

    @property
    def membership(self) -> Membership:
        """This node's membership in the current job."""
        return self.job.membership

    @property
    def texts(self) -> NodeTexts:
        """The texts of the nodes of the current job; see `SharedTexts`."""
        return self.job.texts

    # --- torchrun's methods -----------------------------------------------------------------------

    def get_backend(self) -> str:
        """The name of this backend."""
        return self._params.backend

    def get_run_id(self) -> str:
        """The id of the job."""
        return self._run_id

    def is_closed(self) -> bool:
        """Whether the job is over, as far as this node knows, or this handler was closed."""
        return self._has_closed or self.membership.news.verdict is not None

    def set_closed(self) -> None:
        """End the job on all nodes.

        This handler is closed at once. The other nodes are notified through the store; a handler
        that has not joined connects to it for that.
        """
        if self._is_over:
            return
        self._has_closed = True
        self.job.requests.close("the rendezvous was closed")
        self._start()

    def num_nodes_waiting(self) -> int:
        """1 until the agent has acted on an arrival; only the leader knows the number of nodes."""
        state = self.membership.state
        is_news = state is not None and state.event.kind is JobEventKind.ARRIVED
        return int(is_news and not self.membership.part.wants_round)

    def prepare(self, node: NodeSettings) -> None:
        """Use the agent's settings.

        If the job has succeeded or failed, the next round is the first one of another job.

        Raises:
            UsageError: the parameters and the agent have different addresses for this node, or the
                node has joined already with other settings.
        """
        own = self._params.local_addr
        if node.local_addr and own and node.local_addr != own:
            raise UsageError(
                f"the rendezvous has local_addr={own!r} for this node, but its agent "
                f"(WorkerSpec) has {node.local_addr!r}; give one of them, or the same value twice"
            )
        verdict = self.membership.news.verdict
        is_closed = self._has_closed or self._is_over
        if verdict is not None and verdict.outcome is not JobOutcome.CLOSED and not is_closed:
            # Other nodes read the verdict in the store.
            self.job.requests.finish()
            self.job.threads.stop(min(self._timing.close_timeout, FAREWELL))
            previous = self.membership
            self.job = self._connect(previous.identity, follows=previous.keys.incarnation)
        with self.membership.lock:
            settings = self.membership.identity.settings
            if self.job.has_joined and not self.is_closed() and node != settings:
                raise UsageError(
                    f"this node has joined job {self._run_id!r} with {settings}, and "
                    f"cannot continue with {node}; an agent with another WorkerSpec needs a "
                    "rendezvous handler of its own"
                )
            self.membership.use_settings(node)

    def next_rendezvous(self) -> JobRound:
        """Join the next round and return when it is complete; see `RendezvousHandler`."""
        job, membership, part = self.job, self.membership, self.membership.part
        if self._has_closed:
            raise RendezvousClosedError(
                f"job {self._run_id!r} was closed by this node (set_closed)"
            )
        if membership.news.verdict is not None:
            raise verdict_error(self._run_id, membership.news.verdict)
        patience = self._timing.join_patience(
            membership.identity.job, is_first=not job.has_joined, margin=self._bounds.start_margin
        )
        job.has_joined = True
        if not job.reported:
            job.requests.rejoin()
        job.requests.want_round()
        self._start()
        began = self._clock()
        while True:
            job.threads.supervise()
            with membership.lock:
                if self._is_over:
                    raise RendezvousClosedError(f"this node has left job {self._run_id!r}")
                job.threads.raise_error()
                is_formed, place = not part.wants_round, part.place
                pause = job.arrivals.restart_delay.left(membership.state)
                if pause or membership.is_parked or membership.peers.are_stopping(self._clock()):
                    began = self._clock() + pause
                left = job.arrivals.note_wait(began, patience)
                if is_formed or left <= 0:
                    break
                membership.lock.wait(min(left, self._bounds.check_interval))
        if not is_formed and membership.state is not None:
            error = job.arrivals.explain_timeout()
            place = _give_up(job, error) if membership.is_host else None
            if place is None:
                raise error
        if place is None:
            raise job.threads.explain_unreached()
        if place.rank != 0:
            self._port.release()
        job.reported = {}
        open_store, prefix = self._store.open_store, membership.keys.store(place.round)
        return place.to_round(open_store and partial(open_store, prefix))

    def describe_wait(self) -> str:
        """Describe what `next_rendezvous` waits for."""
        state, failing = self.membership.state, self.job.threads.failing()
        if failing is not None:
            where = "" if failing.names_store else f" at {self._endpoint}"
            return f"the store{where}: {failing}"
        if state is None:
            return f"the store at {self._endpoint}"
        if state.phase is JobPhase.FORMING:
            return self.job.arrivals.describe()
        return self.job.threads.writer.scale_up.describe(state)

    def shutdown(self) -> bool:
        """Leave the job and release everything.

        If the job is over and this process hosts the store, it first waits until the others know
        the verdict. If the job is not over, this node leaves it.
        """
        if self._is_over:
            return True
        if self.job.stay.is_needed():
            self.job.stay.wait(lambda: self._is_over)
        if self.membership.news.verdict is None:
            return self.leave()
        if self.membership.is_host:
            self.job.requests.linger(self.job.stay.must_linger)
            return self._end(self._timing.close_timeout + FAREWELL)
        self.job.requests.finish()
        return self._end(min(self._timing.close_timeout, FAREWELL))

    def leave(self) -> bool:
        """Leave the job, which may continue without this node, and release everything.

        May be called while `shutdown` waits on another thread, which then returns.
        """
        if self._is_over:
            return True
        if self.job.stay.is_needed():
            _log.warning(
                "the store of job %r ends with this launcher, which hosts it; nodes that have not "
                "finished lose it",
                self._run_id,
            )
        if self.membership.state is not None:
            self.job.requests.leave("the launcher was stopped, or failed")
        elif self._has_closed:
            self.job.requests.finish()
        return self._end(min(self._timing.close_timeout, FAREWELL))

    # --- methods of ObservableRendezvous and JobRendezvous ----------------------------------------

    def fileno(self) -> int:
        """A descriptor that is readable while there are changes."""
        return self._pipe.fileno()

    def changes(self) -> Sequence[MembershipChange]:
        """Take all changes. It also supervises the threads, so call it every few seconds."""
        self._pipe.clear()
        job, membership = self.job, self.membership
        job.threads.supervise()
        with membership.lock:
            changes = membership.news.take()
            problem = job.threads.problem()
            if membership.news.error is not None and membership.part.is_active:
                problem = str(membership.news.error)
        if problem is not None and not job.is_unreachable:
            job.is_unreachable = True
            changes.append(MembershipChange(ChangeKind.UNREACHABLE, reason=problem))
        return changes

    @property
    def verdict(self) -> Verdict | None:
        """How the job ended, once this node knows."""
        news = self.membership.news
        if news.verdict is None:
            return None
        return to_verdict(news.verdict, self.job.reported, is_past=news.is_past)

    def report_failure(
        self, failures: Mapping[int, ProcessFailure], *, is_final: bool = False
    ) -> None:
        """Report failed workers of this node to all nodes; see `JobRendezvous`."""
        self.job.reported = failures
        self.job.requests.report(to_job_failures(failures), is_final=is_final)

    def restart_delay(self) -> float:
        """Seconds until the next round may begin, if a restart policy has delayed it."""
        return self.job.arrivals.restart_delay.left(self.membership.state)

    def take_losses(self) -> list[MembershipChange]:
        """Take the nodes lost while this one waits for a round; see `JobRendezvous`."""
        return self.membership.news.take_losses()

    def note_succeeded(self, ended: Mapping[int, float]) -> None:
        """Record which workers of this node have succeeded, and when; see `JobRendezvous`."""
        self.job.requests.note_succeeded(ended)

    def report_success(self) -> None:
        """Report that all workers of this node have succeeded; see `JobRendezvous`."""
        self.job.requests.succeed()

    def send_notice(self, signum: int) -> None:
        """Forward a signal to the agents of all other nodes."""
        self.job.requests.send_notice(signum)

    def request_round(self, reason: str) -> None:
        """Request another round on all nodes; see `JobRendezvous`."""
        self.job.requests.request_round(reason)

    def end_job(self, reason: str) -> None:
        """End the job on all nodes, also before this one has joined; see `JobRendezvous`."""
        self.job.requests.close(reason, JobOutcome.STOPPED)
        self._start()

    def announce_leave(self, reason: str, *, is_excluded: bool = False) -> None:
        """Announce that this node leaves; see `JobRendezvous`."""
        self.membership.excludes_itself |= is_excluded
        self.job.requests.announce_leave(reason, is_excluded=is_excluded)

    # --- threads and ends -------------------------------------------------------------------------

    def _start(self) -> None:
        """Start the threads, unless they run; the exit of the process stops them."""
        atexit.unregister(self._leave_at_exit)
        atexit.register(self._leave_at_exit, os.getpid())
        self.job.threads.start()

    def _leave_at_exit(self, pid: int) -> None:
        # A daemon thread that is in C++ code when the interpreter exits is unwound through that
        # code, which aborts the process. A forked process has none of the threads.
        if pid == os.getpid():
            self.leave()
            self.job.threads.join(FAREWELL)

    def _end(self, patience: float) -> bool:
        """Stop all threads, the writer after its pending requests, and release all resources."""
        with self.membership.lock:
            self._is_over = True
            self.membership.lock.notify_all()  # wakes `next_rendezvous`
        is_clean = self.job.threads.stop(patience)
        if self.job.threads.join(0):
            atexit.unregister(self._leave_at_exit)
        self._pipe.close()
        self._port.release()
        release, self._release = self._release, lambda: None
        release()
        return is_clean or self.job.is_unreachable  # reported by `changes`


def _give_up(job: JobConnection, error: RendezvousTimeoutError) -> RoundPlace | None:
    """End the wait on all nodes; return the place if a round is formed meanwhile."""
    membership, part = job.membership, job.membership.part
    job.requests.give_up(str(error))
    with membership.lock:
        membership.lock.wait_for(
            lambda: membership.news.verdict is not None or not part.wants_round, FAREWELL
        )
        return None if part.wants_round else part.place
