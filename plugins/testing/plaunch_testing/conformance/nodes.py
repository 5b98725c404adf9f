"""Nodes of a test, and their connections to the store; cutting these makes a node look dead."""

from __future__ import annotations

import contextlib
import select
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, cast

import pytest
from plaunch.durations import milliseconds
from plaunch.errors import RendezvousConnectionError
from plaunch.rendezvous import ChangeKind, JobRendezvous, JobRound
from plaunch_membership import DynamicRendezvousHandler, RendezvousStore
from plaunch_membership.testing import lost_nodes, node_name, wrap_connections

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from plaunch.process import ProcessFailure
    from plaunch.rendezvous import MembershipChange, RendezvousHandler, Verdict
    from plaunch_membership import Connect

BOUND = 60.0  # seconds for anything, even on a busy machine
_JOIN = (ChangeKind.ARRIVED, ChangeKind.LEFT, ChangeKind.LOST, ChangeKind.FAILED)
_POLL_PERIOD = 0.25  # seconds


class NodeDiedError(Exception):
    """The test has killed this node."""


class NodeConnections:
    """The connections of one node to its store.

    Args:
        connect: opens a connection to the store.

    Attributes:
        operations: the number of store operations so far, by name.
        dies_at: the number of the operation before which the node dies; None for never.
        keys: the keys that the node has written.
        garble: changes written values, given key and value; None changes nothing.
    """

    def __init__(self, connect: Connect) -> None:
        self.operations: Counter[str] = Counter()
        self.keys: set[str] = set()
        self.dies_at: int | None = None
        self.garble: Callable[[str, bytes], bytes] | None = None
        self._connect = connect
        self._lock = threading.Lock()
        self._is_cut = False
        self._opened: list[RendezvousStore] = []

    @property
    def is_cut(self) -> bool:
        """Whether the node is dead."""
        return self._is_cut

    def connect(self) -> RendezvousStore:
        """Open another connection of the node."""
        if self._is_cut:
            raise NodeDiedError
        store = self._connect()
        with self._lock:
            self._opened.append(store)
        return _InterceptedStore(self, store)

    def cut(self) -> None:
        """Kill the node, possibly in the middle of an operation; nothing more reaches the store."""
        with self._lock:
            self._is_cut = True
            opened, self._opened = self._opened, []
        for store in opened:
            with contextlib.suppress(RendezvousConnectionError):
                store.close()

    def run(self, name: str, operation: Callable[..., Any], *args: Any) -> Any:
        """Run one store operation, unless the node is dead."""
        with self._lock:
            self.operations[name] += 1
            is_last = self.dies_at is not None and self.operations.total() >= self.dies_at
        if is_last:
            self.cut()
        if self._is_cut:
            raise NodeDiedError
        try:
            return operation(*args)
        except RendezvousConnectionError:
            if self._is_cut:
                raise NodeDiedError from None
            raise

    def written(self, key: str, value: bytes) -> bytes:
        """Return the value that reaches the store."""
        self.keys.add(key)
        return value if self.garble is None else self.garble(key, value)


class _InterceptedStore(RendezvousStore):
    """A connection that can be cut and corrupted."""

    def __init__(self, wire: NodeConnections, store: RendezvousStore) -> None:
        self._wire = wire
        self._store = store

    def set(self, key: str, value: bytes) -> None:
        self._wire.run("set", self._store.set, key, self._wire.written(key, value))

    def add(self, key: str, amount: int) -> int:
        return int(self._wire.run("add", self._store.add, key, amount))

    def compare_set(self, key: str, expected: bytes | None, desired: bytes) -> bytes | None:
        written = self._wire.written(key, desired)
        held: bytes | None = self._wire.run(
            "compare_set", self._store.compare_set, key, expected, written
        )
        # A node that corrupts its writes sees its own value.
        return desired if held == written else held

    def multi_get(self, keys: Sequence[str]) -> list[bytes | None]:
        return list(self._wire.run("multi_get", self._store.multi_get, keys))

    def wait(self, key: str, timeout: float) -> bytes | None:
        value: bytes | None = self._wire.run("wait", self._store.wait, key, timeout)
        return value

    def delete(self, key: str) -> None:
        self._wire.run("delete", self._store.delete, key)

    def multi_set(self, items: Mapping[str, bytes]) -> None:
        written = {key: self._wire.written(key, value) for key, value in items.items()}
        self._wire.run("multi_set", self._store.multi_set, written)

    def beat(self, key: str, value: bytes) -> float | None:
        written = self._wire.written(key, value)
        lease: float | None = self._wire.run("beat", self._store.beat, key, written)
        return lease

    def close(self) -> None:
        self._store.close()


class Node:
    """One node of a job under test.

    Args:
        handler: its rendezvous, unused so far.
    """

    def __init__(self, handler: RendezvousHandler) -> None:
        if not isinstance(handler, JobRendezvous):
            pytest.fail(f"{handler!r} is not a JobRendezvous; the suite cannot use it")
        self.handler = handler
        self.changes: list[MembershipChange] = []
        self._connections: NodeConnections | None = None
        if isinstance(handler, DynamicRendezvousHandler):
            wrap_connections(handler, self._intercept)
        self.current_round: JobRound | None = None
        self._thread: threading.Thread | None = None
        self._outcome: object = None
        self._is_over = threading.Event()

    @property
    def job(self) -> JobRendezvous:
        """The handler as a `JobRendezvous`."""
        return cast("JobRendezvous", self.handler)

    @property
    def connections(self) -> NodeConnections:
        """The connections to the store; skips the test if they cannot be intercepted."""
        if self._connections is None:
            pytest.skip("only a DynamicRendezvousHandler can be watched, killed or corrupted")
        return self._connections

    @property
    def has_joined(self) -> bool:
        """Whether the node has registered in the store; True if unknown."""
        return (
            self._connections is None
            or self._connections.is_cut
            or self._connections.operations["set"] > 0
        )

    def considers_lost(self, other: Node) -> bool:
        """Whether this node, as the leader, considers the other one lost."""
        return other.name in lost_nodes(self._dynamic)

    @property
    def name(self) -> str:
        """The node's name in the store."""
        return node_name(self._dynamic)

    def _intercept(self, connect: Connect) -> Connect:
        self._connections = NodeConnections(connect)
        return self._connections.connect

    @property
    def _dynamic(self) -> DynamicRendezvousHandler:
        if not isinstance(self.handler, DynamicRendezvousHandler):
            pytest.skip("only a DynamicRendezvousHandler shows its lost nodes")
        return self.handler

    @property
    def verdict(self) -> Verdict | None:
        """How the job ended, as far as this node knows."""
        return self.job.verdict

    def join(self) -> Node:
        """Start waiting for a round; `round` returns it."""

        def run() -> None:
            try:
                self._outcome = self.handler.next_rendezvous()
            except BaseException as error:  # noqa: BLE001 - raised again by `round`
                self._outcome = error

        self._outcome = None
        self._thread = threading.Thread(target=run, name="conformance", daemon=True)
        self._thread.start()
        return self

    def round(self) -> JobRound:
        """Wait for the round of `join`.

        Raises:
            Exception: raised by `next_rendezvous`.
        """
        assert self._thread is not None, "join first"
        self._thread.join(BOUND)
        assert not self._thread.is_alive(), f"no round, and no error, within {BOUND} s"
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        assert isinstance(self._outcome, JobRound)
        return self._outcome

    def follow(self) -> Node:
        """Join rounds as an agent does, again after each change; sets `current_round`."""

        def run() -> None:
            try:
                while not self._is_over.is_set():
                    self.current_round = self.handler.next_rendezvous()
                    while not self._is_over.is_set() and not self._is_to_join():
                        pass
                    self.current_round = None
            except BaseException as error:  # noqa: BLE001 - raised again by `round`
                self._outcome = error

        self._thread = threading.Thread(target=run, name="conformance", daemon=True)
        self._thread.start()
        return self

    def _is_to_join(self) -> bool:
        self._poll()
        changes, self.changes = self.changes, []
        return any(change.kind in _JOIN for change in changes)

    @property
    def is_waiting(self) -> bool:
        """Whether it is waiting for a round."""
        return self._thread is not None and self._thread.is_alive()

    def wait_for(self, kind: ChangeKind) -> MembershipChange:
        """Wait until the handler reports a change of this kind; return it.

        Earlier changes of other kinds stay in `changes`.
        """
        deadline = time.monotonic() + BOUND
        while time.monotonic() < deadline:
            for index, change in enumerate(self.changes):
                if change.kind is kind:
                    return self.changes.pop(index)
            self._poll()
        pytest.fail(f"no change of kind {kind} came within {BOUND} s, but {self.changes}")

    def _poll(self) -> None:
        poller = select.poll()
        poller.register(self.job.fileno(), select.POLLIN)
        poller.poll(milliseconds(_POLL_PERIOD))
        self.changes += self.job.changes()

    def report(self, failures: Mapping[int, ProcessFailure], *, is_final: bool = False) -> None:
        """Report failures of this node's workers, by global rank."""
        self.job.report_failure(failures, is_final=is_final)

    def kill(self) -> None:
        """Kill the node: cut its connections."""
        self.connections.cut()

    def close(self) -> None:
        """Shut the node down, dead or alive."""
        self._is_over.set()
        self.handler.shutdown()


def eventually(condition: Callable[[], Any], what: str) -> None:
    """Wait until a condition holds; `what` describes it in the error."""
    deadline = time.monotonic() + BOUND
    while not condition():
        assert time.monotonic() < deadline, f"not within {BOUND} s: {what}"
        time.sleep(0.01)


def meet(*nodes: Node) -> list[JobRound]:
    """Let all nodes join one round at once; return each node's view of the round."""
    for node in nodes:
        node.join()
    return met(*nodes)


def met(*nodes: Node) -> list[JobRound]:
    """Return each node's view of the round; fail unless exactly these nodes are in it."""
    rounds = [node.round() for node in nodes]
    assert sorted(one.rank for one in rounds) == list(range(len(nodes)))
    assert {one.world_size for one in rounds} == {len(nodes)}
    stores = {
        (one.bootstrap_store_info.master_addr, one.bootstrap_store_info.master_port)
        for one in rounds
    }
    assert len(stores) == 1, "a round has one address for its workers' store"
    assert len({(one.attempt, one.reason) for one in rounds}) == 1
    return rounds


def are_alone(nodes: Sequence[Node]) -> bool:
    """Whether exactly these nodes are in a round now, without a restart so far."""
    rounds = [node.current_round for node in nodes]
    stores = {one.bootstrap_store_info for one in rounds if one is not None}
    return len(stores) == 1 and all(
        one is not None and (one.world_size, one.attempt) == (len(nodes), 0) for one in rounds
    )


def close_all(nodes: Sequence[Node]) -> None:
    """Shut down all nodes, each on a thread; the first one last, because it may host the store."""
    threads = [threading.Thread(target=node.close) for node in nodes[1:]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND)
    for node in nodes[:1]:
        node.close()
    assert not any(thread.is_alive() for thread in threads), "a shutdown does not return"
