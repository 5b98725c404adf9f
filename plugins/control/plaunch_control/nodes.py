"""The status of all nodes of a job, requested from one of them."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

from plaunch.agent import JobQuery, PublishedAnswer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plaunch.agent import Control

NAME = "status"  # of the broadcast, and of the published answers
BOUND = 1.0  # seconds for the answers of all nodes
_KEYS = (
    *("host", "agent_pid", "alive", "silent_seconds", "phase", "since", "waiting_for"),
    *("round", "attempt", "group_rank", "ranks"),
)


class JobNodes:
    """Collects the status of all nodes with a `JobQuery`.

    Args:
        control: the control of the agent.
        host: of this node.
        describe: returns the status of this node.
        clock: monotonic seconds.
        sleep: sleeps for some seconds.
    """

    def __init__(
        self,
        control: Control,
        host: str,
        describe: Callable[[], Mapping[str, Any]],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._control = control
        self._describe = describe
        self._lock = threading.Lock()
        self._query = JobQuery(control, NAME, host, self._publish, _read, clock=clock, sleep=sleep)

    def answer_call(self, call: str) -> None:
        """Answer the call of another node."""
        self._query.answer_call(call)

    def ask(self) -> list[dict[str, Any]]:
        """Return the status of each node of the round, by rank; takes about a second at most.

        A node that did not answer has only a host. Without a store of the job, only this node is
        returned.
        """
        if not self._control.snapshot().ranks:
            return [self._describe_self()]  # there is no round yet
        found = self._query.ask(BOUND)
        answers = sorted(
            found.answers,
            key=lambda answer: (answer.get("group_rank") is None, answer.get("group_rank")),
        )
        silent = [{"host": host} for host in found.silent]
        return [{key: answer.get(key) for key in _KEYS} for answer in (*answers, *silent)]

    def _describe_self(self) -> dict[str, Any]:
        answer = self._describe()
        return {key: answer[key] for key in _KEYS}

    def _publish(self) -> dict[str, Any]:
        own = self._describe_self()
        text = own["waiting_for"] and own["waiting_for"][:500]
        with self._lock:
            answer = {
                "by": self._query.me,
                "calls": [*self._query.calls],
                **own,
                "waiting_for": text,
            }
            self._control.publish(NAME, json.dumps(answer))
        return own


def _read(node: str, text: str) -> tuple[PublishedAnswer, dict[str, Any]] | None:
    """Parse the answer of a node; return None for any other record."""
    del node
    try:
        answer = json.loads(text)
        published = PublishedAnswer(str(answer["by"]), set(answer["calls"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return published, answer
