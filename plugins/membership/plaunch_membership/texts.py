"""Short texts that the nodes of a job show each other."""

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

MOST_TEXT = 16 << 10  # characters
MOST_BROADCAST = 500  # characters of a name and a text; they stay in the store until the job ends


class Texts:
    """Puts a node's texts into the store, and reads those of all nodes of the round.

    The writer does it, between two heartbeats. Each text takes the place of the node's last one of
    that name, so a job leaves one for each node and name.

    A broadcast is a state of the job, in which nothing else changes. All nodes wait for the next
    state in any case, so they hear of it at once, and listening costs nothing while nobody
    broadcasts; a key that nodes look at would cost each of them a request every second.

    Args:
        ours: this node's membership.
    """

    def __init__(self, ours: Membership) -> None:
        self._ours = ours

    def publish(self, name: str, text: str) -> None:
        """Let all nodes read a text; see `plaunch.rendezvous.SharedTexts`."""
        if len(text) > MOST_TEXT:
            raise ValueError(f"the text {name!r} has {len(text)} characters, not {MOST_TEXT}")
        ours = self._ours

        def write() -> Routine[None]:
            key = ours.keys.text(name, ours.me)
            yield Set(key, ours.codec.encode(key, {"text": text}))

        ours.request(write)

    def broadcast(self, name: str, text: str) -> None:
        """Have all nodes hear a text; see `plaunch.rendezvous.SharedTexts`."""
        said = f"{name} {text}"
        if len(said) > MOST_BROADCAST or " " in name:
            raise ValueError(
                f"{said!r:.60} is no broadcast: a name without spaces and a text have "
                f"{MOST_BROADCAST - 1} characters at most"
            )
        ours = self._ours
        ours.request(lambda: ours.change(lambda state: transitions.broadcast(state, ours.me, said)))

    def listen(self, name: str, listener: Callable[[str], None]) -> None:
        """Hear broadcasts of that name; see `plaunch.rendezvous.SharedTexts`."""
        self._ours.listeners[name] = listener

    def read(
        self, name: str, timeout: float = 1.0, *, all_nodes: bool = False
    ) -> Mapping[str, str]:
        """The texts of that name, by node; see `plaunch.rendezvous.SharedTexts`."""
        ours = self._ours
        found: dict[str, str] = {}
        is_done = threading.Event()

        def look() -> Routine[None]:
            if ours.state is not None:
                members = list((yield from ours.members(ours.state)))
                for begin in range(0, len(members), NODES_OF_A_PART):
                    part = members[begin : begin + NODES_OF_A_PART]
                    keys = [ours.keys.text(name, node) for node in part]
                    values = yield MultiGet(keys)
                    if all_nodes:
                        found.update(dict.fromkeys(part, ""))
                    for node, key, value in zip(part, keys, values, strict=True):
                        if value is not None:
                            self._note(found, node, key, value)
            is_done.set()

        ours.request(look)
        return found if is_done.wait(timeout) else {}

    def _note(self, found: dict[str, str], node: str, key: str, value: bytes) -> None:
        try:
            found[node] = self._ours.codec.decode(key, value).text("text", max_len=MOST_TEXT)
        except RecordError as error:
            self._ours.doubts.note("a node's text", error)
