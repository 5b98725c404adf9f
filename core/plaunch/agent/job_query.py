"""Requests to all nodes of a job, and their answers."""

from __future__ import annotations

import secrets
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from plaunch.agent.extensions import Control

MAX_CALLS = 8  # recent calls that a published answer names

_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.2  # seconds between two checks for answers

T = TypeVar("T")


class PublishedAnswer(NamedTuple):
    """Which node has published an answer, and the ids of the calls that it answers."""

    by: str
    calls: Collection[str]


@dataclass(frozen=True)
class JobAnswers(Generic[T]):
    """The answers of the nodes of a job.

    Args:
        answers: those of the other nodes, after that of this node.
        silent: the hosts of nodes that did not answer in time.
        is_job_wide: whether other nodes can be asked.
        has_store: whether the store of the job answered.
    """

    answers: list[T]
    silent: list[str] = field(default_factory=list)
    is_job_wide: bool = True
    has_store: bool = True


class JobQuery(Generic[T]):
    """Asks all nodes of a job with a broadcast, and collects the answers that they publish.

    It costs nothing without requests. Each node listens to broadcasts of the name, and passes them
    to `answer_call` (`Control.listen`).

    Args:
        control: the control of the agent.
        name: of the broadcast, and of the published answers.
        host: of this node.
        publish: publishes the answer of this node to all of `calls`, and returns it.
        read: parses the text that a node has published; returns None for any other text.
        clock: monotonic seconds.
        sleep: sleeps for some seconds.
    """

    def __init__(
        self,
        control: Control,
        name: str,
        host: str,
        publish: Callable[[], T],
        read: Callable[[str, str], tuple[PublishedAnswer, T] | None],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.me = secrets.token_hex(8)  # the id of this node
        self.calls: deque[str] = deque(maxlen=MAX_CALLS)
        self._control = control
        self._name = name
        self._host = host
        self._publish = publish
        self._read = read
        self._clock = clock
        self._sleep = sleep

    def answer_call(self, call: str) -> None:
        """Answer the call of another node."""
        if call not in self.calls:  # else it is this node's own, or a duplicate
            self.calls.append(call)
            self._publish()

    def ask(self, timeout: float) -> JobAnswers[T]:
        """Return the answers of all nodes that come within `timeout` seconds."""
        call = secrets.token_hex(8)
        until = self._clock() + timeout
        self.calls.append(call)
        self._control.broadcast(self._name, call)
        own = self._publish()

        def read(node: str, text: str) -> tuple[PublishedAnswer, T] | None:
            answer = self._read(node, text)
            return answer if answer is not None and call in answer[0].calls else None

        def published(seconds: float) -> Mapping[str, str] | None:
            return self._control.published(self._name, seconds, all_nodes=True)

        texts, answers = collect_published(
            published, read, until - self._clock(), clock=self._clock, sleep=self._sleep
        )
        if not texts:
            is_job_wide = texts is not None
            return JobAnswers([own], is_job_wide=is_job_wide, has_store=not is_job_wide)
        others = [answer for by, answer in answers.values() if by.by != self.me]
        silent = sorted(node.partition("~")[0] for node in texts.keys() - answers.keys())
        if len(others) == len(answers) and self._host in silent:
            silent.remove(self._host)  # its own answer was not read back in time
        return JobAnswers([own, *others], silent)


def collect_published(
    published: Callable[[float], Mapping[str, str] | None],
    read: Callable[[str, str], T | None],
    timeout: float,
    *,
    count: int | None = None,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> tuple[Mapping[str, str] | None, dict[str, T]]:
    """Read what nodes have published, until all have published what is expected.

    Args:
        published: returns the texts of the nodes, by node, as `Control.published` does within a
            number of seconds.
        read: parses the text of a node; returns None for a text that is not the expected one.
        timeout: seconds, after which the texts so far are returned.
        count: the number of nodes to wait for; by default those that `published` returns.
        clock: monotonic seconds.
        sleep: sleeps for some seconds.

    Returns:
        The last result of `published`, and the parsed texts by node; none if that is empty.
    """
    until, pause = clock() + timeout, _FIRST_PAUSE
    while True:
        left = until - clock()
        texts = published(max(left, _LONGEST_PAUSE))
        found = {
            node: parsed
            for node, text in (texts or {}).items()
            if (parsed := read(node, text)) is not None
        }
        if not texts or left <= 0 or len(found) >= (len(texts) if count is None else count):
            return texts, found
        sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE)
