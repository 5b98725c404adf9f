"""Questions to all nodes of a job, and their answers."""

from __future__ import annotations

import secrets
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from plaunch.agent import Control

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
    to `hear` (`Control.listen`).

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

    def hear(self, call: str) -> None:
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
        pause = _FIRST_PAUSE
        while True:
            left = until - self._clock()
            texts = self._control.published(self._name, max(left, _LONGEST_PAUSE), all_nodes=True)
            if not texts:
                is_job_wide = texts is not None
                return JobAnswers([own], is_job_wide=is_job_wide, has_store=not is_job_wide)
            found = {node: self._read(node, text) for node, text in texts.items()}
            answers = {
                node: answer
                for node, answer in found.items()
                if answer is not None and call in answer[0].calls
            }
            if len(answers) == len(texts) or left <= 0:
                break
            self._sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)
        others = [answer for published, answer in answers.values() if published.by != self.me]
        silent = sorted(node.partition("~")[0] for node in texts.keys() - answers.keys())
        if len(others) == len(answers) and self._host in silent:
            silent.remove(self._host)  # its own answer was not read back in time
        return JobAnswers([own, *others], silent)
