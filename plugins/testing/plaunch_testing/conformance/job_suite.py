"""The base class of the suite for job rendezvous: creates nodes, and lets them meet."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, ClassVar

import pytest
from plaunch.process import ProcessFailure
from plaunch.rendezvous import (
    JobSettings,
    NodeSettings,
    RendezvousHandler,
    RendezvousParameters,
)

from plaunch_testing.conformance.nodes import Node, close_all, eventually, met

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def make_failure(began: float = 1000.0, message: str = "") -> ProcessFailure:
    """Create a worker's failure with the timestamp `began`, in seconds since the epoch."""
    return ProcessFailure(
        0,
        4242,
        3,
        "",
        error_file_data={"message": message} if message else {},
        host="somewhere",
        last_lines=["oh no"],
        timestamp=began,
    )


FAILURE = {1: make_failure()}


class JobSuite:
    """The interface of `RendezvousConformance`, without tests."""

    backend: ClassVar[str] = "conformance"
    endpoint: ClassVar[str] = ""
    config: ClassVar[Mapping[str, object]] = {}  # more options (`--rdzv-conf`) for every handler
    local_addr: ClassVar[str | None] = None  # as `--local-addr`

    # How fast tests notice a lost node; a slow store needs larger values.
    keep_alive_interval: ClassVar[float] = 0.2
    keep_alive_max_attempt: ClassVar[int] = 8

    crowd: ClassVar[int] = 100  # nodes that arrive at once
    steps: ClassVar[int] = 24  # a leader dies before each of so many operations

    def create(self, params: RendezvousParameters) -> RendezvousHandler:
        """Create the handler of one node; override this."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _job(self) -> Iterator[None]:
        self._run_id = f"conformance-{secrets.token_hex(6)}"
        self._nodes: list[Node] = []
        yield
        close_all(self._nodes)

    def node(
        self,
        min_nodes: int,
        max_nodes: int,
        *,
        is_quick: bool = False,
        run_id: str = "",
        role: str = "default",
        nproc: int = 1,
        max_restarts: int = 3,
        index: int | None = None,
        **config: object,
    ) -> Node:
        """Create a node; `is_quick` if it must notice losses soon."""
        keep_alive: dict[str, object] = {"keep_alive_interval": 1.0, "keep_alive_max_attempt": 15}
        if is_quick:
            keep_alive = {
                "keep_alive_interval": self.keep_alive_interval,
                "keep_alive_max_attempt": self.keep_alive_max_attempt,
            }
        params = RendezvousParameters(
            self.backend,
            self.endpoint,
            run_id or self._run_id,
            min_nodes,
            max_nodes,
            self.local_addr,
            job=JobSettings(node_rank=index),
            **{"last_call_timeout": 0.5, **keep_alive, **self.config, **config},
        )
        node = Node(self.create(params))
        node.handler.prepare(NodeSettings(role, nproc, max_restarts))
        self._nodes.append(node)
        return node

    def nodes(self, count: int, min_nodes: int, max_nodes: int, **options: object) -> list[Node]:
        """Create several nodes with the same settings."""
        return [self.node(min_nodes, max_nodes, **options) for _ in range(count)]  # type: ignore[arg-type]

    def in_order(self, count: int, min_nodes: int, max_nodes: int, **options: object) -> list[Node]:
        """Return nodes that have met, in order of their ranks; the first one leads."""
        nodes = self.nodes(count, min_nodes, max_nodes, **options)
        nodes[0].join()
        eventually(lambda: nodes[0].has_joined, "the first one has come")
        for node in nodes[1:]:
            node.join()
        rounds = met(*nodes)
        ranks = {id(node): one.rank for node, one in zip(nodes, rounds, strict=True)}
        return sorted(nodes, key=lambda node: ranks[id(node)])
