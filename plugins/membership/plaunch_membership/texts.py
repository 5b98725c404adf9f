"""Short texts that nodes publish for each other."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from plaunch_membership import transitions
from plaunch_membership.keys import NODES_OF_A_PART
from plaunch_membership.operations import MultiGet, Routine, Set
from plaunch_membership.records import RecordError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plaunch_membership.membership import Membership

MAX_TEXT = 16 << 10  # characters
MAX_BROADCAST = 500  # characters of a name and a text; they stay in the store until the job ends


class NodeTexts:
    """Publishes a node's texts, and reads those of all nodes of the round.

    The writer does both, between two heartbeats. A text replaces the node's previous one of the
    same name, so a job keeps one per node and name.

    A broadcast is a state of the job in which nothing else changes. All nodes wait for the next
    state in any case, so they receive it at once and listening costs nothing. Polling a key would
    cost each node a request per second.

    Args:
        membership: this node's membership.
    """

    def __init__(self, membership: Membership) -> None:
        self._membership = membership

    def publish(self, name: str, text: str) -> None:
        """Publish a text; see `plaunch.rendezvous.SharedTexts`."""
        if len(text) > MAX_TEXT:
            raise ValueError(f"the text {name!r} has {len(text)} characters, not {MAX_TEXT}")
        membership = self._membership

        def write() -> Routine[None]:
            key = membership.keys.text(name, membership.me)
            yield Set(key, membership.codec.encode(key, {"text": text}))

        membership.request(write)

    def broadcast(self, name: str, text: str) -> None:
        """Send a text to the listeners of all nodes; see `plaunch.rendezvous.SharedTexts`."""
        if len(name) + len(text) >= MAX_BROADCAST or " " in name:
            raise ValueError(
                f"cannot broadcast {f'{name} {text}'!r:.60}: the name must have no spaces, "
                f"and name and text at most {MAX_BROADCAST - 1} characters"
            )
        membership = self._membership
        membership.request(
            lambda: membership.change(
                lambda state: transitions.broadcast(state, membership.me, name, text)
            )
        )

    def listen(self, name: str, listener: Callable[[str], None]) -> None:
        """Register a listener for broadcasts of a name; see `plaunch.rendezvous.SharedTexts`."""
        self._membership.listeners[name] = listener

    def read(
        self, name: str, timeout: float = 1.0, *, all_nodes: bool = False
    ) -> Mapping[str, str]:
        """Return the texts of a name by node; see `plaunch.rendezvous.SharedTexts`."""
        membership = self._membership
        found: dict[str, str] = {}
        is_done = threading.Event()

        def read_all() -> Routine[None]:
            if membership.state is not None:
                members = list((yield from membership.members(membership.state)))
                for begin in range(0, len(members), NODES_OF_A_PART):
                    part = members[begin : begin + NODES_OF_A_PART]
                    keys = [membership.keys.text(name, node) for node in part]
                    values = yield MultiGet(keys)
                    if all_nodes:
                        found.update(dict.fromkeys(part, ""))
                    for node, key, value in zip(part, keys, values, strict=True):
                        if value is not None:
                            self._add(found, node, key, value)
            is_done.set()

        membership.request(read_all)
        return found if is_done.wait(timeout) else {}

    def _add(self, found: dict[str, str], node: str, key: str, value: bytes) -> None:
        try:
            found[node] = self._membership.codec.decode(key, value).text("text", max_len=MAX_TEXT)
        except RecordError as error:
            self._membership.rejections.note("a node's text", error)
