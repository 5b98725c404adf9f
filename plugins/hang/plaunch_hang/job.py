"""Decides from the reports of all nodes whether the workers of a job move.

A node publishes a report at the beginning of a round, to show that it watches, and none while its
workers move. While they do not move, it publishes reports with their stacks repeatedly, and reads
those of the other nodes. Reports have durations only, so clocks may differ.
"""

from __future__ import annotations

import enum
import logging
from typing import TYPE_CHECKING, NamedTuple

from plaunch_hang.options import ACTIONS
from plaunch_hang.records import NAME, NodeActivity, NodeReport, dump_report, load_report
from plaunch_hang.stacks import merge
from plaunch_hang.watch import SAMPLES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from plaunch.agent import Control

    from plaunch_hang.stacks import StackGroup

logger = logging.getLogger("plaunch")

_PATIENCE = SAMPLES // 4  # reads of the reports until a node without one is considered silent
_TURN = 3  # reads in which a node should report a hang before the next node does
_PACE = 0.05  # seconds between two reads of the reports, times the number of nodes


class JobFindingKind(enum.Enum):
    """What the reports of all nodes show, for a node whose workers do not move."""

    WAIT = "wait"  # nothing yet
    HANG = "hang"  # no worker of the job moves
    ALONE = "alone"  # workers of other nodes move
    HELD = "held"  # a worker of another node is held
    UNKNOWN = "unknown"  # some nodes are silent


class JobFinding(NamedTuple):
    """What a node whose workers do not move learns from the reports of all nodes.

    Args:
        kind: the conclusion.
        silent: for UNKNOWN: the nodes without a current report.
        held: for HELD: what holds which workers, in words, for each such node.
        early: for HANG: the workers that ended with exit code 0, in words, for each such node.
        seconds: for HANG: how long no worker of the job has moved.
        groups: for HANG: where all workers are, the likely cause first.
        action: for HANG: what to do.
        reporter: for HANG: the host of the node that logs it.
        rank: for HANG: the worker of this node to report as failed.
        is_first: for HANG: whether this node logs it.
        is_turn: for HANG: whether this node should report it now.
    """

    kind: JobFindingKind
    silent: tuple[int, ...] = ()
    held: tuple[str, ...] = ()
    early: tuple[str, ...] = ()
    seconds: float = 0.0
    groups: Sequence[StackGroup] = ()
    action: str = ACTIONS[0]
    reporter: str = ""
    rank: int = -1
    is_first: bool = False
    is_turn: bool = False


WAIT = JobFinding(JobFindingKind.WAIT)


class HangReports:
    """Exchanges the reports of one node in one round of several nodes.

    Args:
        control: publishes and reads texts.
        me: the first report of this node.
        nodes: the number of nodes.
    """

    def __init__(self, control: Control, me: NodeReport, nodes: int) -> None:
        self._control = control
        self._me = me
        self._nodes = nodes
        self._has_published = False
        self._next = 0.0  # when to read the reports again
        self._waits = 0  # reads while the workers of this node do not move
        self._agreed = 0  # consecutive reads at which no worker of the job moved
        self._numbers: dict[int, int] = {}  # the numbers of the reports at the first of these
        self.settings: set[tuple[float, str]] = {(me.timeout, me.action)}  # of all nodes seen

    @property
    def round(self) -> int:
        """The number of the round."""
        return self._me.round

    def publish(
        self,
        now: float,
        state: NodeActivity,
        seconds: float = 0.0,
        groups: Sequence[StackGroup] = (),
        held: str = "",
        early: str = "",
    ) -> bool:
        """Publish a report of this node, if it is new or due again.

        Returns:
            Whether it is time to read the reports of the others.
        """
        is_new = state is not self._me.state or not self._has_published
        if is_new:
            self._waits = self._agreed = 0
            self._numbers = {}
        elif state is NodeActivity.MOVES or now < self._next:
            return False  # repeated reports replace lost ones
        self._next = now + self._nodes * _PACE
        self._has_published = True
        self._me = self._me._replace(
            state=state,
            number=self._me.number + 1,
            seconds=seconds,
            groups=groups,
            held=held,
            early=early,
        )
        try:
            self._control.publish(NAME, dump_report(self._me, self._nodes))
        except ValueError as error:
            logger.warning("a hang is not reported to the other nodes: %s", error)
        return state is NodeActivity.STILL

    def find_silent(self) -> tuple[int, ...]:
        """The nodes without a report; empty if the reports cannot be read."""
        reports = self._read()
        return () if reports is None else self._silent(reports)

    def conclude(self, ranks: Collection[int]) -> JobFinding:
        """Read the reports, while the workers of this node do not move.

        Args:
            ranks: the workers of this node.
        """
        reports = self._read()
        self._waits += 1
        is_late = self._waits > _PATIENCE
        if reports is None:
            return WAIT
        states = {one.state for one in reports.values()}
        if NodeActivity.HELD in states:
            self._waits = self._agreed = 0
            held = [
                one.held for one in reports.values() if one.state is NodeActivity.HELD and one.held
            ]
            return JobFinding(JobFindingKind.HELD, held=tuple(sorted(held)))
        silent = self._silent(reports)
        if NodeActivity.MOVES in states:
            self._forget()
            return JobFinding(JobFindingKind.ALONE)
        if not silent and states <= {NodeActivity.STILL, NodeActivity.OVER}:
            # A report may be old: each node must have repeated it since all stopped moving.
            stale = self._stale(reports)
            if not stale:
                return self._hang(list(reports.values()), ranks)
            return JobFinding(JobFindingKind.UNKNOWN, stale) if is_late else WAIT
        self._forget()
        return JobFinding(JobFindingKind.UNKNOWN, silent) if silent and is_late else WAIT

    def _forget(self) -> None:
        self._agreed = 0
        self._numbers = {}

    def _read(self) -> dict[int, NodeReport] | None:
        """The reports of this round, by node; None if they cannot be read."""
        texts = self._control.published(NAME)
        if texts is not None and not texts:
            return None
        reports = dict(self._select((texts or {}).values()))
        reports[self._me.node] = self._me
        self.settings.update((one.timeout, one.action) for one in reports.values())
        return reports

    def _select(self, texts: Iterable[str]) -> Iterable[tuple[int, NodeReport]]:
        for text in texts:
            try:
                report = load_report(text)
            except ValueError as error:
                logger.debug("an invalid report on hangs is ignored: %s", error)
                continue
            if report.round == self.round and report.node < self._nodes:
                yield report.node, report

    def _silent(self, reports: Mapping[int, NodeReport]) -> tuple[int, ...]:
        return tuple(node for node in range(self._nodes) if node not in reports)

    def _stale(self, reports: Mapping[int, NodeReport]) -> tuple[int, ...]:
        """The nodes without a new report since all nodes stopped moving."""
        still = {n: one.number for n, one in reports.items() if one.state is NodeActivity.STILL}
        if still.keys() != self._numbers.keys():
            self._numbers, self._agreed = still, 0
        return tuple(
            node
            for node, number in still.items()
            if number == self._numbers[node] and node != self._me.node
        )

    def _hang(self, reports: Sequence[NodeReport], ranks: Collection[int]) -> JobFinding:
        groups = merge(item for one in reports for item in one.groups)
        chosen = [rank for item in groups for rank in item.all_ranks]
        owners = {
            rank: one.node for one in reports for item in one.groups for rank in item.all_ranks
        }
        still = {one.node: one for one in reports if one.state is NodeActivity.STILL}
        order = list(dict.fromkeys([*(owners[rank] for rank in chosen), *sorted(still)]))
        me = self._me.node
        own = [rank for rank in chosen if owners[rank] == me and rank in ranks]
        place = order.index(me)
        reads, self._agreed = self._agreed, self._agreed + 1
        return JobFinding(
            JobFindingKind.HANG,
            seconds=min(one.seconds for one in still.values()),
            groups=groups,
            early=tuple(one.early for one in reports if one.early),
            action=min((one.action for one in reports), key=ACTIONS.index),
            reporter=next(one.host for one in reports if one.node == order[0]),
            rank=own[0] if own else min(ranks),
            is_first=place == 0,
            is_turn=reads == place * _TURN,
        )
