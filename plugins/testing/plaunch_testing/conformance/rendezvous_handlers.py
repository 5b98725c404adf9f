"""The conformance suite for all rendezvous handlers, including plain ones."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, ClassVar

import pytest
from plaunch.rendezvous import (
    JobSettings,
    MembershipChange,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
)
from plaunch.restarts import Decision, RestartAction

from plaunch_testing.conformance.plugin_suite import PluginSuite, opened, usage_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from plaunch.plugin import RendezvousFactory
    from plaunch.restarts import Decided, Failure

_LOOPBACK = "127.0.0.1"


class _StopPolicy:
    """A restart policy, which plain handlers do not call."""

    def decide(self, failure: Failure, history: Sequence[Decided]) -> Decision:
        """Stop the job."""
        return Decision(RestartAction.STOP, "no restart in a conformance test")


class RendezvousHandlerConformance(PluginSuite):
    """Subclass this suite and implement `plugin`; pytest collects the subclass.

    It simulates one node, which waits for no others. `RendezvousConformance` is the suite for
    handlers that know the whole job. `seconds` is the time limit of each call.
    """

    backend: ClassVar[str] = "conformance"
    endpoint: ClassVar[str] = ""
    config: ClassVar[Mapping[str, object]] = {}  # options (`--rdzv-conf`)
    nodes: ClassVar[int] = 1  # of the job; more if the handler does not count nodes itself
    local_addr: ClassVar[str | None] = None  # as `--local-addr`

    def plugin(self) -> RendezvousFactory:
        """Return the object that the backend's name refers to; override this."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _handlers(self, _surroundings: None) -> Iterator[None]:
        self._run_id = f"conformance-{secrets.token_hex(6)}"
        self._created: list[RendezvousHandler] = []
        yield
        for handler in self._created:
            handler.shutdown()

    def parameters(self, **config: object) -> RendezvousParameters:
        """Return the parameters of a launch, with more options of the backend."""
        return RendezvousParameters(
            self.backend,
            self.endpoint,
            self._run_id,
            self.nodes,
            self.nodes,
            self.local_addr,
            job=JobSettings(
                restart_policy=_StopPolicy(),
                shared={"--restart-policy": "standard"},
            ),
            **{**self.config, **config},
        )

    def create(self, **config: object) -> RendezvousHandler:
        """Create a node's handler; it is shut down after the test."""
        return self.create_with(self.parameters(**config))

    def create_with(self, params: RendezvousParameters) -> RendezvousHandler:
        """Create a handler with these parameters; it is shut down after the test."""
        handler: RendezvousHandler = self.call("creating it", self.thing, params)
        self._created.append(handler)
        return handler

    def use_once(self) -> object:
        """Join a round."""
        handler = self.create()
        return self.call("next_rendezvous()", handler.next_rendezvous)

    def meet(self, handler: RendezvousHandler) -> RendezvousInfo:
        """Join the next round."""
        return self.call("next_rendezvous()", handler.next_rendezvous)

    def test_it_is_a_handler(self) -> None:
        """It is a `RendezvousHandler`."""
        handler = self.create()
        assert isinstance(handler, RendezvousHandler), f"{handler!r} is not a RendezvousHandler"

    def test_it_knows_its_name_and_the_run_id(self) -> None:
        """Both are nonempty strings."""
        handler = self.create()
        assert handler.get_backend(), "the backend has no name"
        assert isinstance(handler.get_backend(), str)
        assert handler.get_run_id() == self._run_id

    def test_a_round_is_complete(self) -> None:
        """It has a rank among the nodes, and an address for the workers' store."""
        info = self.meet(self.create())
        assert 0 <= info.rank < info.world_size, f"rank {info.rank} of {info.world_size}"
        assert info.world_size == self.nodes, f"{info.world_size} nodes, and not {self.nodes}"
        where = info.bootstrap_store_info
        assert where.master_addr, "the round has no address"
        assert isinstance(where.master_port, int)
        assert 0 < where.master_port < 1 << 16, f"the port is {where.master_port}"

    def test_it_takes_the_address_of_its_node(self) -> None:
        """`local_addr` is the value of `--local-addr`, or None."""
        params = self.parameters()
        params.local_addr = _LOOPBACK
        info = self.meet(self.create_with(params))
        assert info.bootstrap_store_info.master_addr, "the round has no address"

    def test_there_is_a_next_round(self) -> None:
        """A restart forms another round of the same nodes."""
        handler = self.create()
        first, second = self.meet(handler), self.meet(handler)
        assert (first.rank, first.world_size) == (second.rank, second.world_size)

    def test_it_answers_before_and_after_a_round(self) -> None:
        """These calls return at once, because the agent's loop makes them."""
        handler = self.create()
        for _ in range(2):
            assert self.call("is_closed()", handler.is_closed) is False
            waiting = self.call("num_nodes_waiting()", handler.num_nodes_waiting)
            assert type(waiting) is int, f"num_nodes_waiting() is {waiting!r}"
            assert waiting == 0, f"num_nodes_waiting() is {waiting}, without other nodes"
            assert isinstance(handler.use_agent_store, bool)
            assert isinstance(handler.hosts_worker_store, bool)
            self.meet(handler)

    def test_it_describes_what_it_waits_for(self) -> None:
        """`describe_wait` returns one line of less than 300 characters."""
        text = self.create().describe_wait()
        assert isinstance(text, str), f"describe_wait() is {text!r}"
        assert 0 < len(text) < 300, f"describe_wait() is {text!r}"
        assert "\n" not in text, f"describe_wait() is {text!r}"

    def test_it_reports_changes_if_it_has_a_descriptor(self) -> None:
        """It has both `fileno` and `changes`, or neither; -1 means that nothing ever changes."""
        handler = self.create()
        has = [callable(getattr(handler, name, None)) for name in ("fileno", "changes")]
        assert has[0] == has[1], "it has one of fileno and changes, and not the other"
        if not has[0]:
            return
        self.meet(handler)
        fd = handler.fileno()  # type: ignore[attr-defined]
        assert type(fd) is int, f"fileno() is {fd!r}"
        changes = list(handler.changes())  # type: ignore[attr-defined]
        assert all(isinstance(change, MembershipChange) for change in changes), f"{changes!r}"
        assert fd == handler.fileno(), "the descriptor changes"  # type: ignore[attr-defined]

    def test_it_can_be_shut_down_twice(self) -> None:
        """`shutdown` returns True each time."""
        handler = self.create()
        self.meet(handler)
        for _ in range(2):
            answer = self.call("shutdown()", handler.shutdown)
            assert answer is True, f"shutdown() returned {answer!r}"

    def test_it_can_be_shut_down_at_once(self) -> None:
        """A launch may end before its first round."""
        assert self.call("shutdown()", self.create().shutdown) is True

    def test_it_can_leave(self) -> None:
        """`leave` replaces `shutdown` when this node stops early."""
        handler = self.create()
        self.meet(handler)
        assert self.call("leave()", handler.leave) is True

    def test_nothing_is_open_after_shutdown(self) -> None:
        """It closes all ports and files."""
        handler = self.create()
        self.meet(handler)
        handler.shutdown()
        found = opened(self.files_before)
        assert not found, f"it leaves open {found}"

    def test_another_launch_may_follow(self) -> None:
        """A second launch on the same node may use the same parameters."""
        for _ in range(2):
            handler = self.create()
            self.meet(handler)
            handler.shutdown()

    @pytest.mark.parametrize(
        ("option", "value"),
        [("no_such_option", "1"), ("rank", "x"), ("timeout", "soon"), ("port", "-1")],
    )
    def test_a_bad_option_is_a_usage_error(self, option: str, value: str) -> None:
        """It may be accepted, but no other exception may be raised."""
        with usage_errors():
            self.create(**{option: value})
