"""Where all workers of a job are, for whoever asks on one of its nodes."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from plaunch_hang.stacks.grouping import Group, group, merge
from plaunch_hang.stacks.operations import last_operations, merge_operations
from plaunch_hang.stacks.records import NodeAnswer, dump_answer, load_answer
from plaunch_hang.stacks.taking import take
from plaunch_hang.stacks.telling import keep, only_alive

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from plaunch.agent import Control
    from plaunch.plugin import PluginContext

    from plaunch_hang.stacks.stack import ProcessStacks

    Take = Callable[..., dict[int, ProcessStacks]]

logger = logging.getLogger("plaunch")

NAME = "stacks"  # of the call, and of the answers
LOOK_BOUND = 2.0  # seconds for the look at the workers of one node
ANSWER_BOUND = 3.0  # seconds for the answers of all nodes
_SLACK = 1.0  # seconds for files, and for a store that is slow
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.4  # seconds between two looks at the answers
_CALLS = 8  # that one answer may be for
_TITLE = "the workers were here when that was asked for"

T = TypeVar("T")


class JobView(NamedTuple):
    """Where the workers of a job are.

    Args:
        groups: their ranks by place, the likely cause first.
        folders: where whole stacks are, as pairs of a host and a folder.
        problems: why whole stacks are not kept, as pairs of a host and a reason.
        silent: the hosts of nodes that have not answered in time.
        is_job_wide: whether other nodes can be asked at all, as far as there are any.
        has_store: whether the store has answered, if others can be asked.
        operations: the last collective operations, as torch's flight recorder has them, with the
            ranks that have begun them; that of the fewest ranks comes first.
    """

    groups: list[Group]
    folders: tuple[tuple[str, str], ...] = ()
    problems: tuple[tuple[str, str], ...] = ()
    silent: tuple[str, ...] = ()
    is_job_wide: bool = True
    has_store: bool = True
    operations: Mapping[str, tuple[int, ...]] = {}

    def of(self, ranks: Collection[int]) -> list[Group]:
        """The groups with these ranks only."""
        left = [
            item._replace(
                ranks={
                    host: kept
                    for host, own in item.ranks.items()
                    if (kept := tuple(rank for rank in own if rank in ranks))
                }
            )
            for item in self.groups
        ]
        return merge(item for item in left if item.ranks)


class JobStacks:
    """Looks at all workers of a job when somebody asks on one of its nodes.

    The call goes to the other nodes as a broadcast (`plaunch.rendezvous.SharedTexts`), for which no
    node has to look anywhere: with `plaunch_membership` it is a state of the job, for which they
    all wait in any case. So this costs a job nothing while nobody asks, however many nodes there
    are, and they hear of it at once. Each node looks at its own workers and shows their groups;
    where it asks, they are read and merged. All of this is bounded, and whoever asks while a look
    is under way gets the same one.

    Args:
        context: the launch.
        control: what the extension that uses this was given.
        take: looks at processes by rank, within `timeout` seconds.
        clock: seconds that never go back.
        sleep: waits for so many seconds.
    """

    def __init__(
        self,
        context: PluginContext,
        control: Control,
        *,
        take: Take = take,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._context = context
        self._control = control
        self._take = take
        self._clock = clock
        self._sleep = sleep
        self._me = secrets.token_hex(8)
        self._calls: deque[str] = deque(maxlen=_CALLS)
        self._looks = _Shared(self._look)
        self._views = _Shared(self._ask_all)

    def ask(self) -> JobView:
        """Where all workers are now; this waits for about three seconds at most.

        Raises:
            TimeoutError: not even this node could look at its own in time.
        """
        return self._views.call(ANSWER_BOUND + _SLACK)[0]

    def hear(self, call: str) -> None:
        """Look at the workers of this node, for another one that has called.

        Raises:
            TimeoutError: a look that was under way has not ended.
        """
        if call not in self._calls:  # else it is this node's own, or was heard twice
            self._calls.append(call)
            self._answer()

    def rest(self, seconds: float = 1.0) -> None:
        """Wait for the end of a look, as far as it comes within so many seconds."""
        self._looks.wait(seconds)

    def _answer(self) -> NodeAnswer:
        answer, is_ours = self._looks.call(LOOK_BOUND + _SLACK)
        if is_ours:
            # Those who have called meanwhile have not begun another look.
            answer = answer._replace(calls=tuple(self._calls))
            self._control.publish(NAME, dump_answer(answer))
        return answer

    def _look(self) -> NodeAnswer:
        context, now = self._context, self._control.snapshot()
        stacks = only_alive(self._take(dict(now.pids), timeout=LOOK_BOUND)) if now.pids else {}
        groups = group({context.host: stacks}, self._control.held() if stacks else {})
        folder = problem = ""
        if stacks:
            title = f"{_TITLE} (attempt {now.attempt}, {context.host})"
            specs = context.settings.get("logs_specs")
            try:
                folder = keep(
                    stacks,
                    groups,
                    title,
                    specs,
                    context.run_id,
                    attempt=now.attempt,
                    occasion="request",
                )
            except Exception as error:  # noqa: BLE001 - of a third party's logs spec, say
                problem = str(error) or type(error).__name__
        operations = last_operations(stacks)
        return NodeAnswer(self._me, (), context.host, folder, problem, groups, operations)

    def _ask_all(self) -> JobView:
        call = secrets.token_hex(8)
        until = self._clock() + ANSWER_BOUND
        self._calls.append(call)
        self._control.broadcast(NAME, call)
        own = self._answer()
        pause = _FIRST_PAUSE
        while True:
            left = until - self._clock()
            texts = self._control.published(NAME, max(left, _LONGEST_PAUSE), all_nodes=True)
            if not texts:
                return _view([own], is_job_wide=texts is not None, has_store=texts is None)
            answers = {
                node: answer
                for node, text in texts.items()
                if (answer := _read(node, text)) is not None and call in answer.calls
            }
            if len(answers) == len(texts) or left <= pause:
                others = [answer for answer in answers.values() if answer.by != own.by]
                silent = sorted(_host_of(node) for node in texts.keys() - answers.keys())
                if len(others) == len(answers) and own.host in silent:
                    silent.remove(own.host)  # its own answer has not come back
                return _view([own, *others], silent)
            self._sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)


def _view(
    answers: Collection[NodeAnswer],
    silent: Collection[str] = (),
    *,
    is_job_wide: bool = True,
    has_store: bool = True,
) -> JobView:
    folders = {(answer.host, answer.folder): None for answer in answers if answer.folder}
    problems = {(answer.host, answer.problem): None for answer in answers if answer.problem}
    return JobView(
        merge(item for answer in answers for item in answer.groups),
        tuple(folders),
        tuple(problems),
        tuple(silent),
        is_job_wide,
        has_store,
        merge_operations(answer.operations for answer in answers),
    )


def _read(node: str, text: str) -> NodeAnswer | None:
    if not text:
        return None
    try:
        return load_answer(text)
    except ValueError as error:
        logger.debug("the answer of node %s is left out: %s", node, error)
        return None


def _host_of(node: str) -> str:
    """The host in the name of a node, which may have more to it."""
    return node.partition("~")[0]


class _Shared(Generic[T]):
    """A function of which all calls at one time are the same call."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._lock = threading.Lock()
        self._running: _Running[T] | None = None

    def call(self, patience: float) -> tuple[T, bool]:
        """Its result, and whether this call was the one that began it.

        Args:
            patience: seconds to wait for one that another thread has begun.

        Raises:
            TimeoutError: that has not ended, or has failed.
        """
        with self._lock:
            running = self._running
            if running is None:
                ours = self._running = _Running[T]()
        if running is not None:
            running.is_over.wait(patience)
            for result in running.results:
                return result, False
            raise TimeoutError("a look at the workers that was under way has not come to an end")
        try:
            result = self._function()
            ours.results.append(result)
        finally:
            with self._lock:
                self._running = None
            ours.is_over.set()
        return result, True

    def wait(self, seconds: float) -> None:
        """Wait until it does not run, for so many seconds at most."""
        running = self._running
        if running is not None:
            running.is_over.wait(seconds)


class _Running(Generic[T]):
    """A call that has begun; its result, once there is one."""

    def __init__(self) -> None:
        self.is_over = threading.Event()
        self.results: list[T] = []
