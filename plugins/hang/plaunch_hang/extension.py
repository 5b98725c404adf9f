"""Watches the workers of one launch, on a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from plaunch.agent import WorkerState
from plaunch.threads import start_thread

from plaunch_hang.beating import VARIABLE
from plaunch_hang.beats import Beat, Beats
from plaunch_hang.conclusions import Conclusions, Look, Round
from plaunch_hang.held import LateHolds
from plaunch_hang.looks import Looks
from plaunch_hang.stacks import find_py_spy
from plaunch_hang.steps import Steps, format_steps
from plaunch_hang.telling import Scenes
from plaunch_hang.timeouts import UNLEARNED, Timeouts
from plaunch_hang.watch import HangWatch, pause_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.agent import Control, RunResult, WorkerInfo
    from plaunch.events import Event
    from plaunch.plugin import PluginContext
    from plaunch.process import OutputCounts

logger = logging.getLogger("plaunch")

_WAIT = 1.0  # seconds for the thread to end
_SHARE = 2  # times what a look takes is the pause after it, at least
_SLOWEST = 3  # times the usual pause, at most


class HangExtension:
    """The extension.

    Args:
        context: the launch.
        timeout: seconds, or None to learn them from heartbeats.
        action: `warn`, `restart` or `stop`.
        looks: look at workers.
        scenes: look at them once a hang is found.
        clock: seconds that never go back.
    """

    takes_events = False

    def __init__(
        self,
        context: PluginContext,
        timeout: float | None,
        action: str,
        *,
        looks: Looks | None = None,
        scenes: Scenes | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timeouts = Timeouts(timeout)
        self._longest = UNLEARNED if timeout is None else timeout
        self._looks = looks or Looks()
        self._clock = clock
        self._beats: Beats | None = None
        self._ranks: dict[int, int] = {}  # local ranks by global rank, of the round
        self._watch = HangWatch()
        self._late_holds = LateHolds()
        self._steps = Steps()
        self._conclusions = Conclusions(
            context.host, timeout, action, self._watch, scenes or Scenes(context)
        )
        self._control: Control
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        try:
            self._beats = Beats()
        except OSError as error:
            logger.debug("there are no heartbeats: %s", error)

    # --- the extension ----------------------------------------------------------------------------

    def start(self, control: Control) -> None:
        """Begin to watch."""
        self._control = control
        try:
            find_py_spy()
        except FileNotFoundError as error:
            self._say_coarse(f"{error}")
        self.release()

    def handle(self, event: Event) -> None:
        """Do nothing: looks see what runs."""

    def stop(self, result: RunResult | None) -> None:
        """End watching."""
        del result
        self.rest()
        if self._beats is not None and self._thread is None:
            self._beats.close()
            self._beats = None

    def rest(self) -> None:
        """Have no thread until `release`, for the process to fork."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(_WAIT)
            if not self._thread.is_alive():
                self._thread = None

    def release(self) -> None:
        """Watch, on a thread, if there is none."""
        if self._thread is not None:
            return
        self._over = threading.Event()
        thread = threading.Thread(
            target=self._run, args=(self._over,), name="plaunch-hang", daemon=True
        )
        start_thread(thread, blocks_signals=True)
        self._thread = thread

    # --- the rounds -------------------------------------------------------------------------------

    def environment(self, worker: WorkerInfo) -> dict[str, str]:
        """The variable through which a worker finds the place of its heartbeats."""
        self._ranks[worker.global_rank] = worker.local_rank
        if self._beats is None:
            return {}
        try:
            value = self._beats.variable(worker.local_rank)
        except OSError as error:
            logger.warning("heartbeats of rank %d are not seen: %s", worker.global_rank, error)
            return {}
        return {VARIABLE: value}

    def begin(self, round_: int, node: int, nodes: int) -> None:
        """A round of so many nodes has formed, in which this one has that rank."""
        self._ranks = {}
        self._conclusions.begin(Round(round_, node, nodes))

    # --- the thread -------------------------------------------------------------------------------

    def _run(self, over: threading.Event) -> None:
        pause = pause_for(self._longest)
        while not over.wait(pause):
            began = self._clock()
            try:
                usual = self.look(began, pause)
            except Exception:
                logger.exception("hangs are not looked for any more")
                return
            # Looks at very many workers, or on a busy machine, take their time.
            pause = min(max(usual, _SHARE * (self._clock() - began)), _SLOWEST * usual)

    def look(self, now: float, pause: float) -> float:
        """Look at the workers, and say what has to be said.

        Args:
            now: seconds that never go back.
            pause: seconds since the last look, if this one comes in time.

        Returns:
            Seconds until the next one.
        """
        snapshot = self._control.snapshot()
        pids = dict(snapshot.pids) if snapshot.state is WorkerState.HEALTHY else {}
        beats = {rank: self._read_beat(rank) for rank in pids}
        timeouts = {rank: self._timeouts.of(beat) for rank, beat in beats.items()}
        progress = self._steps.look(now, pids, beats)
        self._control.note_progress(progress)
        held = {r: one for r, one in self._control.held().items() if one.pid == pids.get(r)}
        sights = self._looks.look(pids, beats, timeouts, self._watch.suspects())
        for reason in self._looks.reasons.values():
            self._say_coarse(reason)
        sights = {
            rank: sight._replace(output=self._output(snapshot.output, rank), is_held=rank in held)
            for rank, sight in sights.items()
        }
        finding = self._watch.look(now, sights, pause)
        shortest = min(map(self._timeouts.outside, beats.values()), default=self._longest)
        late = self._late_holds.take(now, held, timeouts)
        steps = format_steps(progress) if finding.still else ""
        self._conclusions.draw(
            self._control,
            Look(now, snapshot, pids, timeouts, shortest, finding, held, late, steps),
        )
        # What is learned may be shorter than what counted before.
        return pause_for(min(timeouts.values(), default=self._longest))

    def _read_beat(self, rank: int) -> Beat:
        local_rank = self._ranks.get(rank)
        if local_rank is None or self._beats is None:
            return Beat()
        return self._beats.read(local_rank)

    def _output(self, counts: OutputCounts, rank: int) -> int:
        if not counts.by_worker:
            return counts.read_bytes
        return counts.by_worker.get(self._ranks.get(rank, -1), 0)

    def _say_coarse(self, reason: str) -> None:
        self._conclusions.say_once(
            self._control,
            "stacks cannot be seen, so --hang-timeout goes by processor time, system calls and "
            f"output, which is coarser: {reason}",
        )
