"""The status of all nodes of a job, requested from one of them."""

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

NAME = "status"  # of the broadcast, and of the published answers
BOUND = 1.0  # seconds for the answers of all nodes
_PAUSE = 0.01  # seconds between two checks for answers
_CALLS = 8  # recent calls that a published answer names
_KEYS = (
    *("host", "agent_pid", "alive", "silent_seconds", "phase", "since", "waiting_for"),
    *("round", "attempt", "group_rank", "ranks"),
)


class JobNodes:
    """Collects the status of all nodes with a broadcast; costs nothing without requests.

    Args:
        control: the control of the agent.
        describe: returns the status of this node.
        clock: monotonic seconds.
        sleep: sleeps for some seconds.
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

    def handle_call(self, call: str) -> None:
        """Answer the call of another node."""
        with self._lock:
            if call not in self._calls:  # else it is this node's own, or a duplicate
                self._calls.append(call)
                self._publish()

    def ask(self) -> list[dict[str, Any]]:
        """Return the status of each node of the round, by rank; takes about a second at most.

        A node that did not answer has only a host. Without a store of the job, only this node is
        returned.
        """
        own = self._describe_self()
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
            silent = [node for node, answer in answers.items() if answer is None]
            if silent and left > 0:
                self._sleep(_PAUSE)
                continue
            found = [answer for answer in answers.values() if answer is not None]
            hosts = sorted(node.partition("~")[0] for node in silent)
            if all(answer["by"] != self._me for answer in found):
                found.append(own)  # its own answer was not read back in time
                if own["host"] in hosts:
                    hosts.remove(own["host"])
            found.sort(
                key=lambda answer: (answer.get("group_rank") is None, answer.get("group_rank"))
            )
            return [
                {key: answer.get(key) for key in _KEYS}
                for answer in (*found, *map(_unknown, hosts))
            ]

    def _describe_self(self) -> dict[str, Any]:
        answer = self._describe()
        return {key: answer[key] for key in _KEYS}

    def _publish(self) -> None:
        answer = {"by": self._me, "calls": [*self._calls], **self._describe_self()}
        answer["waiting_for"] = answer["waiting_for"] and answer["waiting_for"][:500]
        self._control.publish(NAME, json.dumps(answer))


def _unknown(host: str) -> dict[str, Any]:
    return {"host": host}


def _read(text: str, call: str) -> dict[str, Any] | None:
    """Parse the answer to a call; return None for any other record."""
    try:
        answer = json.loads(text)
        is_answer = call in answer["calls"] and isinstance(answer["by"], str)
    except (ValueError, TypeError, KeyError):
        return None
    return answer if is_answer else None
