"""Acts on the samples: logs messages, publishes reports for other nodes, reports failures."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from plaunch.agent import WorkerState
from plaunch.numbers import name_ranks
from plaunch.process import describe_early_ends

from plaunch_hang.job import HangReports, JobFindingKind
from plaunch_hang.options import ACTIONS
from plaunch_hang.records import NodeActivity, NodeReport
from plaunch_hang.snapshots import describe_held, describe_time
from plaunch_hang.stacks import format_groups
from plaunch_hang.watch import ALONE, SAMPLES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plaunch.agent import Control, Snapshot
    from plaunch.process import Held

    from plaunch_hang.job import JobFinding
    from plaunch_hang.snapshots import StackSnapshot, StackSnapshots
    from plaunch_hang.watch import HangFinding, HangWatch

_WARN, _RESTART, _STOP = ACTIONS


class WatchedRound(NamedTuple):
    """The current round: its number, the rank of this node, and the number of nodes."""

    number: int = 0
    node: int = 0
    nodes: int = 1


class WatchSample(NamedTuple):
    """One sample of the workers of this node.

    Args:
        now: its time, in monotonic seconds.
        snapshot: the state of the agent at that time.
        pids: the process ids of the running workers, by global rank.
        timeouts: the hang timeout of each worker in seconds, by global rank.
        shortest: the shortest timeout outside of sections, in seconds.
        finding: what was found.
        held: what holds workers that cannot move, by global rank.
        held_late: workers that have just been held for their timeout.
        steps: the steps that workers reported, in words; empty if none did.
    """

    now: float
    snapshot: Snapshot
    pids: Mapping[int, int]
    timeouts: Mapping[int, float]
    shortest: float
    finding: HangFinding
    held: Mapping[int, Held]
    held_late: Mapping[int, Held]
    steps: str = ""


class Conclusions:
    """Decides what to log and report, after each sample of one launch.

    Args:
        host: the name of this host.
        timeout: `--hang-timeout` in seconds, or None to learn it.
        action: `--on-hang`.
        watch: the watch of the workers of this node.
        snapshots: takes and keeps their stacks once they do not move.
    """

    def __init__(
        self,
        host: str,
        timeout: float | None,
        action: str,
        watch: HangWatch,
        snapshots: StackSnapshots,
    ) -> None:
        self._host = host
        self._timeout = timeout
        self._action = action
        self._watch = watch
        self._snapshots = snapshots
        self._round = WatchedRound()
        self._job: HangReports | None = None  # in a round of several nodes
        self._samples = 0  # samples in that round
        self._snapshot: StackSnapshot | None = None  # while the workers of this node do not move
        self._is_reported = False  # whether it was logged that only those of this node do not
        self._logged: set[str] = set()

    def begin(self, round_: WatchedRound) -> None:
        """Record a new round; called on another thread than the other methods."""
        self._round = round_

    def log_once(self, control: Control, text: str) -> None:
        """Log a text, unless it was logged before."""
        if text not in self._logged:
            self._logged.add(text)
            control.say(text)

    def update(self, control: Control, sample: WatchSample) -> None:
        """Handle the next sample."""
        finding = sample.finding
        if finding.recovered:
            word = "moves" if len(finding.recovered) == 1 else "move"
            control.say(f"{name_ranks(finding.recovered)} {word} again")
        if finding.stragglers:
            snapshot = self._snapshots.take(
                {rank: sample.pids[rank] for rank in finding.stragglers}
            )
            self._log_stragglers(control, sample, snapshot)
        if sample.held_late:
            self._log_held(control, sample)
        if not finding.still:
            self._snapshot, self._is_reported = None, False
        elif self._snapshot is None:
            self._snapshot = self._snapshots.take(sample.pids)
        round_ = self._round
        if round_.nodes == 1:
            self._conclude_here(control, sample)
        elif sample.snapshot.round == round_.number:
            self._conclude_there(control, sample, round_)

    # --- one node ---------------------------------------------------------------------------------

    def _conclude_here(self, control: Control, sample: WatchSample) -> None:
        if self._snapshot is None or self._watch.is_reported:
            return
        self._watch.note_reported(is_hang=True)
        title = f"no worker of the job has moved for {describe_time(sample.finding.still)}"
        folder = self._snapshots.keep(self._snapshot, title)
        lines = [*self._snapshot.lines, sample.steps]
        early = _describe_early_ends(sample)
        if self._action == _WARN:
            _show(control, title, [*lines, early], folder)
        else:
            rank = self._snapshot.first
            kept = f"whole stacks: {folder}" if folder else ""
            _report(control, rank, title, [*lines, early, kept], self._action)

    # --- several nodes ----------------------------------------------------------------------------

    def _conclude_there(self, control: Control, sample: WatchSample, round_: WatchedRound) -> None:
        if not sample.snapshot.is_job_wide:
            self._warn_blind(control, "the nodes of this rendezvous cannot exchange reports")
            self._report_this_node(control, sample)
            return
        job = self._job
        if job is None or job.round != round_.number:
            timeout = self._timeout or 0.0
            me = NodeReport(*round_[:2], self._host, NodeActivity.MOVES, 0, timeout, self._action)
            self._job = job = HangReports(control, me, round_.nodes)
            self._samples = 0
        state = self._state(sample)
        if state is None:
            return
        groups = [] if self._snapshot is None else self._snapshot.groups
        held = describe_held(sample.held, self._host) if sample.held else ""
        early = _describe_early_ends(sample, self._host)
        if job.publish(sample.now, state, sample.finding.still, groups, held, early):
            self._act_on(control, sample, job.conclude(sample.pids))
        self._samples += 1
        if self._samples == 2 * SAMPLES and round_.node == 0:
            # Warn early, instead of when the job hangs.
            self._warn_silent(control, job.find_silent())
        if len(job.settings) > 1:
            self.log_once(
                control,
                "the nodes have different --hang-timeout or --on-hang: the longest timeout and "
                "the mildest action apply",
            )

    def _state(self, sample: WatchSample) -> NodeActivity | None:
        """The state of this node's workers; None while they are started or stopped."""
        if sample.snapshot.state is WorkerState.SUCCEEDED:
            return NodeActivity.OVER
        if not sample.pids:
            return None
        if sample.held:
            return NodeActivity.HELD
        if sample.finding.still:
            return NodeActivity.STILL
        is_long = self._watch.idle() >= sample.shortest / ALONE
        return NodeActivity.PAUSES if is_long else NodeActivity.MOVES

    def _act_on(self, control: Control, sample: WatchSample, found: JobFinding) -> None:
        """Act on what the reports of all nodes show."""
        snapshot = self._snapshot
        if snapshot is None:
            return
        if found.kind is JobFindingKind.HANG:
            self._report_job(control, sample, snapshot, found)
        elif found.kind is JobFindingKind.ALONE and not self._is_reported:
            self._is_reported = True
            self._watch.note_reported(is_hang=False)
            self._log_stragglers(control, sample, snapshot)
        elif found.kind is JobFindingKind.HELD:
            for text in found.held:
                self.log_once(control, f"no worker of this node has moved for long; {text}")
        elif found.kind is JobFindingKind.UNKNOWN:
            self._warn_silent(control, found.silent)
            self._report_this_node(control, sample)

    def _report_job(
        self, control: Control, sample: WatchSample, snapshot: StackSnapshot, found: JobFinding
    ) -> None:
        title = f"no worker of the job has moved for {describe_time(found.seconds)}"
        others = [sample.steps, *found.early]
        lines = [*format_groups(found.groups), *others]
        is_new = not self._watch.is_reported
        self._watch.note_reported(is_hang=True)
        folder = self._snapshots.keep(snapshot, title, found.groups) if is_new else ""
        if found.action != _WARN and found.is_turn:
            kept = f"whole stacks on {self._host}: {folder}" if folder else ""
            # The first line is that of the rank that the report names.
            groups = sorted(found.groups, key=lambda item: found.rank not in item.all_ranks)
            lines = [*format_groups(groups), *others, kept]
            _report(control, found.rank, title, lines, found.action)
        elif is_new and found.is_first:
            _show(control, title, lines, folder)
        elif is_new:
            _show(control, f"{title}; {found.reporter} logs where all ranks are", [], folder)

    def _report_this_node(self, control: Control, sample: WatchSample) -> None:
        if self._snapshot is None or self._is_reported:
            return
        self._is_reported = True
        self._watch.note_reported(is_hang=False)
        title = f"no worker of this node has moved for {describe_time(sample.finding.still)}"
        lines = [*self._snapshot.lines, sample.steps, _describe_early_ends(sample)]
        _show(control, title, lines, self._snapshots.keep(self._snapshot, title))

    def _log_held(self, control: Control, sample: WatchSample) -> None:
        snapshot = self._snapshots.take(sample.pids, sample.held)
        without = "" if self._action == _WARN else f", and --on-hang={self._action} does not act"
        title = (
            f"{describe_held(sample.held_late, self._host)}; --hang-timeout is paused "
            f"meanwhile{without}"
        )
        _show(
            control, title, [*snapshot.lines, sample.steps], self._snapshots.keep(snapshot, title)
        )

    def _log_stragglers(
        self, control: Control, sample: WatchSample, snapshot: StackSnapshot
    ) -> None:
        ranks = tuple(sorted(snapshot.stacks))
        longest = max(sample.timeouts[rank] for rank in ranks)
        word = "has" if len(ranks) == 1 else "have"
        title = f"{name_ranks(ranks)} {word} not moved for {describe_time(longest)}, others have"
        _show(control, title, snapshot.lines, self._snapshots.keep(snapshot, title))

    def _warn_silent(self, control: Control, nodes: Sequence[int]) -> None:
        if nodes:
            words = "does not report its" if len(nodes) == 1 else "do not report their"
            who = name_ranks(nodes, "node")
            self._warn_blind(control, f"{who} {words} workers; give --hang-timeout to all nodes")

    def _warn_blind(self, control: Control, reason: str) -> None:
        without = "" if self._action == _WARN else f", and --on-hang={self._action} has no effect"
        self.log_once(control, f"a hang of the whole job cannot be detected{without}: {reason}")


def _describe_early_ends(sample: WatchSample, host: str = "") -> str:
    """Name workers of this node that ended while others run, which may be the cause of a hang."""
    return describe_early_ends(sample.snapshot.succeeded, time.time(), host)


def _show(control: Control, title: str, lines: Sequence[str], folder: str) -> None:
    control.say(f"{title}:" if lines else title)
    for line in filter(None, lines):
        control.say(line)
    if folder:
        control.say(f"whole stacks: {folder}")


def _report(control: Control, rank: int, title: str, lines: Sequence[str], action: str) -> None:
    others = list(filter(None, lines[1:]))
    text = "\n".join([f"{title} (--hang-timeout): {lines[0]}", *others])
    if action == _RESTART:
        # The failure report has all lines, but is only printed if no restart follows.
        for line in others:
            control.say(line)
    control.report_hang(rank, text, is_final=action == _STOP)
