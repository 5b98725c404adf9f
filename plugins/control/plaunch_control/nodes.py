"""What all nodes of a job do, for whoever asks on one of them."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plaunch.agent import Control

NAME = "status"  # of the call, and of the answers
BOUND = 1.0  # seconds for the answers of all nodes
_PAUSE = 0.01  # seconds between two looks at the answers
_CALLS = 8  # that one answer may be for
_KEYS = (
    *("host", "agent_pid", "alive", "silent_seconds", "phase", "since", "waiting_for"),
    *("round", "attempt", "group_rank", "ranks"),
)


class JobNodes:
    """Asks the other nodes by a broadcast, which costs a job nothing while nobody asks.

    Args:
        control: what the extension was given.
        describe: what this node does.
        clock: seconds that never go back.
        sleep: waits for so many seconds.
    """

    def __init__(
        self,
        control: Control,
        describe: Callable[[], Mapping[str, Any]],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._control = control
        self._describe = describe
        self._clock = clock
        self._sleep = sleep
        self._me = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._calls: deque[str] = deque(maxlen=_CALLS)

    def hear(self, call: str) -> None:
        """Tell another node that has called what this one does."""
        with self._lock:
            if call not in self._calls:  # else it is this node's own, or was heard twice
                self._calls.append(call)
                self._publish()

    def ask(self) -> list[dict[str, Any]]:
        """What each node of the round does, by rank; this waits for about a second at most.

        Of a node that has not answered, only the host is known. Where nodes cannot be asked, it is
        this one alone.
        """
        own = self._own()
        if not self._control.snapshot().ranks:
            return [own]  # there is no round yet
        call = secrets.token_hex(8)
        until = self._clock() + BOUND
        with self._lock:
            self._calls.append(call)
            self._publish()
        self._control.broadcast(NAME, call)
        while True:
            left = until - self._clock()
            texts = self._control.published(NAME, max(left, _PAUSE), all_nodes=True)
            if not texts:
                return [own]
            answers = {node: _read(text, call) for node, text in texts.items()}
            silent = [node for node, told in answers.items() if told is None]
            if silent and left > 0:
                self._sleep(_PAUSE)
                continue
            found = [told for told in answers.values() if told is not None]
            hosts = sorted(node.partition("~")[0] for node in silent)
            if all(told["by"] != self._me for told in found):
                found.append(own)  # its answer has not come back
                if own["host"] in hosts:
                    hosts.remove(own["host"])
            found.sort(key=lambda told: (told.get("group_rank") is None, told.get("group_rank")))
            return [
                {key: told.get(key) for key in _KEYS} for told in (*found, *map(_unknown, hosts))
            ]

    def _own(self) -> dict[str, Any]:
        told = self._describe()
        return {key: told[key] for key in _KEYS}

    def _publish(self) -> None:
        told = {"by": self._me, "calls": [*self._calls], **self._own()}
        told["waiting_for"] = told["waiting_for"] and told["waiting_for"][:500]
        self._control.publish(NAME, json.dumps(told))


def _unknown(host: str) -> dict[str, Any]:
    return {"host": host}


def _read(text: str, call: str) -> dict[str, Any] | None:
    """An answer to a call; None if it is none."""
    try:
        told = json.loads(text)
        is_answer = call in told["calls"] and isinstance(told["by"], str)
    except (ValueError, TypeError, KeyError):
        return None
    return told if is_answer else None
