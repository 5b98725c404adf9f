"""What follows from the looks: what is said to the user, told to other nodes and reported."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from plaunch.agent import WorkerState
from plaunch.numbers import name_ranks
from plaunch.process import describe_early_ends

from plaunch_hang.job import JobWatch, Kind
from plaunch_hang.options import ACTIONS
from plaunch_hang.records import NodeState, Told
from plaunch_hang.stacks import format_groups
from plaunch_hang.telling import describe_held, describe_time
from plaunch_hang.watch import ALONE, LOOKS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plaunch.agent import Control, Snapshot
    from plaunch.process import Held

    from plaunch_hang.job import Outlook
    from plaunch_hang.telling import Scene, Scenes
    from plaunch_hang.watch import Finding, HangWatch

_WARN, _RESTART, _STOP = ACTIONS


class Round(NamedTuple):
    """A round: its number, and this node's rank among its nodes."""

    number: int = 0
    node: int = 0
    nodes: int = 1


class Look(NamedTuple):
    """One look.

    Args:
        now: when it was, in seconds that never go back.
        snapshot: what the agent did then.
        pids: the processes of the workers that run, by global rank.
        timeouts: seconds within which each should move.
        shortest: the least of them, outside of sections.
        finding: what was found.
        held: what holds workers that cannot move, by global rank.
        held_late: those that have just been held for their time-out.
        steps: what the workers have said of their steps, in words; empty for nothing.
    """

    now: float
    snapshot: Snapshot
    pids: Mapping[int, int]
    timeouts: Mapping[int, float]
    shortest: float
    finding: Finding
    held: Mapping[int, Held]
    held_late: Mapping[int, Held]
    steps: str = ""


class Conclusions:
    """The conclusions of one launch.

    Args:
        host: the name of this host.
        timeout: `--hang-timeout` in seconds, or None to learn it.
        action: `--on-hang`.
        watch: the workers of this node, from look to look.
        scenes: looks at them once they are still.
    """

    def __init__(
        self, host: str, timeout: float | None, action: str, watch: HangWatch, scenes: Scenes
    ) -> None:
        self._host = host
        self._timeout = timeout
        self._action = action
        self._watch = watch
        self._scenes = scenes
        self._round = Round()
        self._job: JobWatch | None = None  # of a round of several nodes
        self._looks = 0  # in that round
        self._scene: Scene | None = None  # while the workers of this node are still
        self._is_told = False  # that those of this node are, alone
        self._said: set[str] = set()

    def begin(self, round_: Round) -> None:
        """A round has formed; this is called on another thread than all else."""
        self._round = round_

    def say_once(self, control: Control, text: str) -> None:
        """Say it unless it was said."""
        if text not in self._said:
            self._said.add(text)
            control.say(text)

    def draw(self, control: Control, look: Look) -> None:
        """Take the next look."""
        finding = look.finding
        if finding.recovered:
            word = "moves" if len(finding.recovered) == 1 else "move"
            control.say(f"{name_ranks(finding.recovered)} {word} again")
        if finding.stragglers:
            scene = self._scenes.see({rank: look.pids[rank] for rank in finding.stragglers})
            self._say_stragglers(control, look, scene)
        if look.held_late:
            self._say_held(control, look)
        if not finding.still:
            self._scene, self._is_told = None, False
        elif self._scene is None:
            self._scene = self._scenes.see(look.pids)
        round_ = self._round
        if round_.nodes == 1:
            self._conclude_here(control, look)
        elif look.snapshot.round == round_.number:
            self._conclude_there(control, look, round_)

    # --- one node ---------------------------------------------------------------------------------

    def _conclude_here(self, control: Control, look: Look) -> None:
        if self._scene is None or self._watch.is_told:
            return
        self._watch.note_told(is_hang=True)
        title = f"no worker of the job has moved for {describe_time(look.finding.still)}"
        folder = self._scenes.keep(self._scene, title)
        lines = [*self._scene.lines, look.steps]
        early = _describe_early_ends(look)
        if self._action == _WARN:
            _show(control, title, [*lines, early], folder)
        else:
            rank = self._scene.first
            kept = f"whole stacks: {folder}" if folder else ""
            _report(control, rank, title, [*lines, early, kept], self._action)

    # --- several nodes ----------------------------------------------------------------------------

    def _conclude_there(self, control: Control, look: Look, round_: Round) -> None:
        if not look.snapshot.is_job_wide:
            self._say_blind(control, "the nodes of this rendezvous cannot tell each other anything")
            self._tell_this_node(control, look)
            return
        job = self._job
        if job is None or job.round != round_.number:
            timeout = self._timeout or 0.0
            me = Told(*round_[:2], self._host, NodeState.MOVES, 0, timeout, self._action)
            self._job = job = JobWatch(control, me, round_.nodes)
            self._looks = 0
        state = self._state(look)
        if state is None:
            return
        groups = [] if self._scene is None else self._scene.groups
        held = describe_held(look.held, self._host) if look.held else ""
        early = _describe_early_ends(look, self._host)
        if job.tell(look.now, state, look.finding.still, groups, held, early):
            self._follow(control, look, job.judge(look.pids))
        self._looks += 1
        if self._looks == 2 * LOOKS and round_.node == 0:
            # Rather than once the job hangs.
            self._say_silent(control, job.find_silent())
        if len(job.settings) > 1:
            self.say_once(
                control,
                "the nodes have different --hang-timeout or --on-hang: the longest time-out and "
                "the mildest action count",
            )

    def _state(self, look: Look) -> NodeState | None:
        """What the workers of this node do; None while they are started or stopped."""
        if look.snapshot.state is WorkerState.SUCCEEDED:
            return NodeState.OVER
        if not look.pids:
            return None
        if look.held:
            return NodeState.HELD
        if look.finding.still:
            return NodeState.STILL
        is_long = self._watch.idle() >= look.shortest / ALONE
        return NodeState.PAUSES if is_long else NodeState.MOVES

    def _follow(self, control: Control, look: Look, outlook: Outlook) -> None:
        """Do what an outlook on the job asks for."""
        scene = self._scene
        if scene is None:
            return
        if outlook.kind is Kind.HANG:
            self._tell_job(control, look, scene, outlook)
        elif outlook.kind is Kind.ALONE and not self._is_told:
            self._is_told = True
            self._watch.note_told(is_hang=False)
            self._say_stragglers(control, look, scene)
        elif outlook.kind is Kind.HELD:
            for text in outlook.held:
                self.say_once(control, f"no worker of this node has moved for long; {text}")
        elif outlook.kind is Kind.UNKNOWN:
            self._say_silent(control, outlook.silent)
            self._tell_this_node(control, look)

    def _tell_job(self, control: Control, look: Look, scene: Scene, outlook: Outlook) -> None:
        title = f"no worker of the job has moved for {describe_time(outlook.seconds)}"
        lines = [*format_groups(outlook.groups), look.steps, *outlook.early]
        is_new = not self._watch.is_told
        self._watch.note_told(is_hang=True)
        folder = self._scenes.keep(scene, title, outlook.groups) if is_new else ""
        if outlook.action != _WARN and outlook.is_turn:
            kept = f"whole stacks on {self._host}: {folder}" if folder else ""
            _report(control, outlook.rank, title, [*lines, kept], outlook.action)
        elif is_new and outlook.is_first:
            _show(control, title, lines, folder)
        elif is_new:
            _show(control, f"{title}; {outlook.teller} says where all ranks are", [], folder)

    def _tell_this_node(self, control: Control, look: Look) -> None:
        if self._scene is None or self._is_told:
            return
        self._is_told = True
        self._watch.note_told(is_hang=False)
        title = f"no worker of this node has moved for {describe_time(look.finding.still)}"
        lines = [*self._scene.lines, look.steps, _describe_early_ends(look)]
        _show(control, title, lines, self._scenes.keep(self._scene, title))

    def _say_held(self, control: Control, look: Look) -> None:
        scene = self._scenes.see(look.pids, look.held)
        without = "" if self._action == _WARN else f", and --on-hang={self._action} does not act"
        title = (
            f"{describe_held(look.held_late, self._host)}; no time counts for --hang-timeout "
            f"meanwhile{without}"
        )
        _show(control, title, [*scene.lines, look.steps], self._scenes.keep(scene, title))

    def _say_stragglers(self, control: Control, look: Look, scene: Scene) -> None:
        ranks = tuple(sorted(scene.stacks))
        longest = max(look.timeouts[rank] for rank in ranks)
        word = "has" if len(ranks) == 1 else "have"
        title = f"{name_ranks(ranks)} {word} not moved for {describe_time(longest)}, others have"
        _show(control, title, scene.lines, self._scenes.keep(scene, title))

    def _say_silent(self, control: Control, nodes: Sequence[int]) -> None:
        if nodes:
            verb = "does not tell whether its" if len(nodes) == 1 else "do not tell whether their"
            who = name_ranks(nodes, "node")
            self._say_blind(control, f"{who} {verb} workers move; give --hang-timeout to all nodes")

    def _say_blind(self, control: Control, reason: str) -> None:
        without = "" if self._action == _WARN else f", and --on-hang={self._action} has no effect"
        self.say_once(control, f"a hang of the whole job cannot be found{without}: {reason}")


def _describe_early_ends(look: Look, host: str = "") -> str:
    """Which workers of this node have ended while the others go on; they may be missed."""
    return describe_early_ends(look.snapshot.succeeded, time.time(), host)


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
        # The report, which has all of them, only comes if no restart follows.
        for line in others:
            control.say(line)
    control.report_hang(rank, text, is_final=action == _STOP)
