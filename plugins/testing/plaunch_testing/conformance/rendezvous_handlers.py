"""What every rendezvous handler must do, also one that knows nothing of other nodes."""

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

from plaunch_testing.conformance.plugin_suite import PluginSuite
from plaunch_testing.conformance.surroundings import opened, usage_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from plaunch.plugin import RendezvousFactory
    from plaunch.restarts import Decided, Failure

_STOP_TIMEOUT = 60.0  # seconds that the node may need to stop its workers
_LOOPBACK = "127.0.0.1"


class _StopPolicy:
    """A restart policy; a handler that does not know the whole job does not ask it."""

    def decide(self, failure: Failure, history: Sequence[Decided]) -> Decision:
        """Stop the job."""
        return Decision(RestartAction.STOP, "no restart in a conformance test")


class RendezvousHandlerConformance(PluginSuite):
    """Derive from it, say what the `plugin` is, and let pytest collect the class.

    It plays one node, which waits for no others, with the parameters that a launch gives.
    `RendezvousConformance` is the suite for handlers that know the whole job. `seconds` is how long
    a round may take; other calls come from the agent's loop, and have a second.
    """

    backend: ClassVar[str] = "conformance"
    endpoint: ClassVar[str] = ""
    config: ClassVar[Mapping[str, object]] = {}  # options (`--rdzv-conf`)
    nodes: ClassVar[int] = 1  # of the job; more, for a handler that takes it for granted
    local_addr: ClassVar[str | None] = None  # as `--local-addr`, which most launches do not have

    def plugin(self) -> RendezvousFactory:
        """What the backend's name gives; to be overridden."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _handlers(self, _surroundings: None) -> Iterator[None]:
        self._run_id = f"conformance-{secrets.token_hex(6)}"
        self._created: list[RendezvousHandler] = []
        yield
        for handler in self._created:
            handler.shutdown()

    def parameters(self, **config: object) -> RendezvousParameters:
        """What a launch without `--local-addr` gives the backend, with more of its options."""
        return RendezvousParameters(
            self.backend,
            self.endpoint,
            self._run_id,
            self.nodes,
            self.nodes,
            self.local_addr,
            job=JobSettings(
                local_world_size=2,
                stop_timeout=_STOP_TIMEOUT,
                restart_policy=_StopPolicy(),
                shared={"--restart-policy": "standard"},
            ),
            **{**self.config, **config},
        )

    def create(self, **config: object) -> RendezvousHandler:
        """Create the handler of a node; it is shut down after the test."""
        return self.create_with(self.parameters(**config))

    def create_with(self, params: RendezvousParameters) -> RendezvousHandler:
        """Create a handler with these parameters; it is shut down after the test."""
        handler: RendezvousHandler = self.call("creating it", self.thing, params)
        self._created.append(handler)
        return handler

    def use_once(self) -> object:
        """Meet."""
        handler = self.create()
        return self.call("next_rendezvous()", handler.next_rendezvous)

    def meet(self, handler: RendezvousHandler) -> RendezvousInfo:
        """Join the next round."""
        return self.call("next_rendezvous()", handler.next_rendezvous)

    def test_it_is_a_handler(self) -> None:
        """Derived from `RendezvousHandler`."""
        handler = self.create()
        assert isinstance(handler, RendezvousHandler), f"{handler!r} is not a RendezvousHandler"

    def test_it_knows_its_name_and_the_run_id(self) -> None:
        """Both are texts."""
        handler = self.create()
        assert handler.get_backend(), "the backend has no name"
        assert isinstance(handler.get_backend(), str)
        assert handler.get_run_id() == self._run_id

    def test_a_round_is_complete(self) -> None:
        """With a rank among the nodes, and a place for the workers' store."""
        info = self.meet(self.create())
        assert 0 <= info.rank < info.world_size, f"rank {info.rank} of {info.world_size}"
        assert info.world_size == self.nodes, f"{info.world_size} nodes, and not {self.nodes}"
        where = info.bootstrap_store_info
        assert where.master_addr, "the round has no address"
        assert isinstance(where.master_port, int)
        assert 0 < where.master_port < 1 << 16, f"the port is {where.master_port}"

    def test_it_takes_the_address_of_its_node(self) -> None:
        """As `--local-addr` gives it; a launch without that option gives None."""
        params = self.parameters()
        params.local_addr = _LOOPBACK
        info = self.meet(self.create_with(params))
        assert info.bootstrap_store_info.master_addr, "the round has no address"

    def test_there_is_a_next_round(self) -> None:
        """After a restart, for the same nodes."""
        handler = self.create()
        first, second = self.meet(handler), self.meet(handler)
        assert (first.rank, first.world_size) == (second.rank, second.world_size)

    def test_it_answers_before_and_after_a_round(self) -> None:
        """At once: these are called from the agent's loop."""
        handler = self.create()
        for _ in range(2):
            assert self.call("is_closed()", handler.is_closed) is False
            waiting = self.call("num_nodes_waiting()", handler.num_nodes_waiting)
            assert type(waiting) is int, f"num_nodes_waiting() is {waiting!r}"
            assert waiting == 0, f"{waiting} nodes wait, and there are none"
            assert isinstance(handler.use_agent_store, bool)
            assert isinstance(handler.hosts_worker_store, bool)
            self.meet(handler)

    def test_it_says_in_words_what_it_waits_for(self) -> None:
        """In one line that is not too long."""
        text = self.create().describe_wait()
        assert isinstance(text, str), f"it says {text!r}"
        assert 0 < len(text) < 300, f"it says {text!r}"
        assert "\n" not in text, f"it says {text!r}"

    def test_it_tells_changes_if_it_has_a_descriptor(self) -> None:
        """`fileno` and `changes` belong together; -1 means that nothing ever changes."""
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
        """And says whether it worked."""
        handler = self.create()
        self.meet(handler)
        for _ in range(2):
            answer = self.call("shutdown()", handler.shutdown)
            assert answer is True, f"shutdown() says {answer!r}"

    def test_it_can_be_shut_down_at_once(self) -> None:
        """A launch may end before there is a round."""
        assert self.call("shutdown()", self.create().shutdown) is True

    def test_it_can_leave(self) -> None:
        """Instead of being shut down, when this node is told to stop."""
        handler = self.create()
        self.meet(handler)
        assert self.call("leave()", handler.leave) is True

    def test_nothing_is_open_after_shutdown(self) -> None:
        """Neither a port nor a file."""
        handler = self.create()
        self.meet(handler)
        handler.shutdown()
        found = opened(self.files_before)
        assert not found, f"it leaves open {found}"

    def test_another_launch_may_follow(self) -> None:
        """On the same node, with the same parameters."""
        for _ in range(2):
            handler = self.create()
            self.meet(handler)
            handler.shutdown()

    @pytest.mark.parametrize(
        ("option", "value"),
        [("no_such_option", "1"), ("rank", "x"), ("timeout", "soon"), ("port", "-1")],
    )
    def test_a_bad_option_is_a_usage_error(self, option: str, value: str) -> None:
        """If the backend minds it at all; no other exception may leave it."""
        with usage_errors():
            self.create(**{option: value})
