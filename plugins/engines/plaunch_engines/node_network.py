"""What a node has reported of its network, as the command sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class NodeNetwork:
    """The addresses of a node, and which of the stores that it was asked about it reaches.

    Attributes:
        addresses: numeric addresses of the node.
        client: the address from which ssh has reached the node; empty without ssh.
    """

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.client = ""
        self._missing: set[str] = set()
        self._answers: dict[str, Mapping[str, Any]] = {}

    def add_hello(self, record: Mapping[str, Any]) -> None:
        """Take note of the hello, which may be that of another version of plaunch."""
        self.addresses = record.get("addresses", [])
        self.client = record.get("client", "")

    def ask(self, endpoints: Iterable[str]) -> None:
        """Note that the node has been asked about the stores at these endpoints."""
        self._missing = {*endpoints}

    def add_answer(self, record: Mapping[str, Any]) -> None:
        """Take note of a record of the kind `probed`."""
        self._answers[record["endpoint"]] = record
        self._missing.discard(record["endpoint"])

    def has_answered(self) -> bool:
        """Whether it has reported all that it was asked."""
        return not self._missing

    def error_at(self, endpoint: str) -> str:
        """Return why it does not reach a store; empty if it does."""
        found = self._answers.get(endpoint)
        return "it has not answered" if found is None else str(found["error"])

    def round_trip_to(self, endpoint: str) -> float:
        """Return the seconds of a round trip to a store that it reaches."""
        return int(self._answers[endpoint]["microseconds"]) / 1e6
