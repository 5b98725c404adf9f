"""The stacks of all workers of a job, requested from one of its nodes."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from plaunch.agent import JobQuery, PublishedAnswer
from plaunch.process import find_run_dir

from plaunch_hang.stacks.files import folder_name, keep, only_alive
from plaunch_hang.stacks.grouping import StackGroup, group, merge
from plaunch_hang.stacks.records import NodeAnswer, dump_answer, load_answer
from plaunch_hang.stacks.taking import take

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from plaunch.agent import Control, JobAnswers
    from plaunch.plugin import PluginContext

    from plaunch_hang.stacks.stack import ProcessStacks

    Take = Callable[..., dict[int, ProcessStacks]]

logger = logging.getLogger("plaunch")

NAME = "stacks"  # of the broadcast, and of the published answers
TAKE_TIMEOUT = 2.0  # seconds to read the stacks of one node's workers
ANSWER_TIMEOUT = 3.0  # seconds for the answers of all nodes
_SLACK = 1.0  # seconds for writing files, and for a slow store
_TITLE = "the workers were here at the time of the request"

T = TypeVar("T")


class JobView(NamedTuple):
    """The stacks of the workers of a job.

    Args:
        groups: the ranks grouped by stack, the likely cause first.
        folders: the folders of complete stacks, as pairs of a host and a folder.
        problems: why complete stacks are not written, as pairs of a host and a reason.
        silent: the hosts of nodes that did not answer in time.
        is_job_wide: whether other nodes can be asked.
        has_store: whether the store answered.
    """

    groups: list[StackGroup]
    folders: tuple[tuple[str, str], ...] = ()
    problems: tuple[tuple[str, str], ...] = ()
    silent: tuple[str, ...] = ()
    is_job_wide: bool = True
    has_store: bool = True

    def of(self, ranks: Collection[int]) -> list[StackGroup]:
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
    """Reads the stacks of all workers of a job, on a request to one of its nodes.

    The request is broadcast to the other nodes (`JobQuery`). Each node reads the stacks of its own
    workers and publishes their groups; the node of the request reads and merges them. All steps
    have timeouts. Simultaneous requests share one result.

    Args:
        context: the launch.
        control: the control of the extension that uses this.
        take: reads the stacks of processes by rank, within `timeout` seconds.
        clock: monotonic seconds.
        sleep: sleeps for some seconds.
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
        self._query = JobQuery(
            control, NAME, context.host, self._answer, _read, clock=clock, sleep=sleep
        )
        self._takes = _SharedCall(self._take_own)
        self._views = _SharedCall(self._ask_all)

    def ask(self) -> JobView:
        """Return the current stacks of all workers; takes about three seconds at most.

        Raises:
            TimeoutError: the stacks of this node could not be read in time.
        """
        return self._views.call(ANSWER_TIMEOUT + _SLACK)[0]

    def answer_call(self, call: str) -> None:
        """Answer the call of another node.

        Raises:
            TimeoutError: a previous request is still running.
        """
        self._query.answer_call(call)

    def rest(self, seconds: float = 1.0) -> None:
        """Wait up to `seconds` for a running request."""
        self._takes.wait(seconds)

    def _answer(self) -> NodeAnswer:
        answer, is_own = self._takes.call(TAKE_TIMEOUT + _SLACK)
        if is_own:
            # Calls that arrived meanwhile are answered too.
            answer = answer._replace(calls=tuple(self._query.calls))
            self._control.publish(NAME, dump_answer(answer))
        return answer

    def _take_own(self) -> NodeAnswer:
        context, now = self._context, self._control.snapshot()
        stacks = only_alive(self._take(dict(now.pids), timeout=TAKE_TIMEOUT)) if now.pids else {}
        groups = group({context.host: stacks}, self._control.held() if stacks else {})
        folder = problem = ""
        if stacks:
            title = f"{_TITLE} (attempt {now.attempt}, {context.host})"
            try:
                run_dir = find_run_dir(context.settings.get("logs_specs"), context.run_id)
                folder = keep(stacks, groups, title, run_dir, folder_name(now.attempt, "request"))
            except Exception as error:  # noqa: BLE001 - may come from a third party's logs spec
                problem = str(error) or type(error).__name__
        return NodeAnswer(self._query.me, (), context.host, folder, problem, groups)

    def _ask_all(self) -> JobView:
        return _view(self._query.ask(ANSWER_TIMEOUT))


def _view(found: JobAnswers[NodeAnswer]) -> JobView:
    answers = found.answers
    folders = {(answer.host, answer.folder): None for answer in answers if answer.folder}
    problems = {(answer.host, answer.problem): None for answer in answers if answer.problem}
    return JobView(
        merge(item for answer in answers for item in answer.groups),
        tuple(folders),
        tuple(problems),
        tuple(found.silent),
        found.is_job_wide,
        found.has_store,
    )


def _read(node: str, text: str) -> tuple[PublishedAnswer, NodeAnswer] | None:
    if not text:
        return None
    try:
        answer = load_answer(text)
    except ValueError as error:
        logger.debug("the invalid answer of node %s is ignored: %s", node, error)
        return None
    return PublishedAnswer(answer.by, answer.calls), answer


class _SharedCall(Generic[T]):
    """A function whose simultaneous calls share one execution."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._lock = threading.Lock()
        self._running: _RunningCall[T] | None = None

    def call(self, patience: float) -> tuple[T, bool]:
        """Return the result, and whether this call executed the function.

        Args:
            patience: seconds to wait for an execution by another thread.

        Raises:
            TimeoutError: that execution did not end, or failed.
        """
        with self._lock:
            running = self._running
            if running is None:
                own = self._running = _RunningCall[T]()
        if running is not None:
            running.is_over.wait(patience)
            for result in running.results:
                return result, False
            raise TimeoutError("another request for stacks is still running")
        try:
            result = self._function()
            own.results.append(result)
        finally:
            with self._lock:
                self._running = None
            own.is_over.set()
        return result, True

    def wait(self, seconds: float) -> None:
        """Wait up to `seconds` for a running execution."""
        running = self._running
        if running is not None:
            running.is_over.wait(seconds)


class _RunningCall(Generic[T]):
    """A running execution and, later, its result."""

    def __init__(self) -> None:
        self.is_over = threading.Event()
        self.results: list[T] = []
