"""The extension that watches the workers of one launch, on its own thread."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from plaunch.agent import Extension, WorkerState
from plaunch.process import HeldProcesses
from plaunch.threads import start_thread

from plaunch_hang.conclusions import Conclusions, WatchedRound, WatchSample
from plaunch_hang.heartbeats import (
    UNLEARNED,
    HangTimeouts,
    HeartbeatMemory,
    HeartbeatState,
    StepTracker,
    format_steps,
)
from plaunch_hang.sampler import WorkerSampler
from plaunch_hang.snapshots import StackSnapshots
from plaunch_hang.stacks import find_py_spy
from plaunch_hang.watch import HangWatch, OverdueHolds, pause_for
from plaunch_hang.worker import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.agent import Control, RunResult, WorkerInfo
    from plaunch.plugin import PluginContext
    from plaunch.process import OutputCounts

logger = logging.getLogger("plaunch")

_WAIT = 1.0  # seconds for the thread to end
_SHARE = 2  # the pause after a sample is at least this many times the time of the sample
_SLOWEST = 3  # and at most this many times the usual pause


class HangExtension(Extension):
    """Samples the workers, and detects hangs.

    Args:
        context: the launch.
        timeout: the hang timeout in seconds, or None to learn it from heartbeats.
        action: `warn`, `restart` or `stop`.
        sampler: samples workers.
        snapshots: takes their stacks once a hang is found.
        clock: monotonic seconds.
        find_py_spy: raises FileNotFoundError if py-spy is not installed.
    """

    takes_events = False

    def __init__(
        self,
        context: PluginContext,
        timeout: float | None,
        action: str,
        *,
        sampler: WorkerSampler | None = None,
        snapshots: StackSnapshots | None = None,
        clock: Callable[[], float] = time.monotonic,
        find_py_spy: Callable[[], str] = find_py_spy,
    ) -> None:
        self._timeouts = HangTimeouts(timeout)
        self._longest = UNLEARNED if timeout is None else timeout
        self._sampler = sampler or WorkerSampler()
        self._clock = clock
        self._find_py_spy = find_py_spy
        self._heartbeats: HeartbeatMemory | None = None
        self._ranks: dict[int, int] = {}  # the local ranks of this round, by global rank
        self._watch = HangWatch()
        self._late_holds = OverdueHolds()
        self._how: dict[int, str] = {}  # what holds processes besides the kernel, in this sample
        self._holds = HeldProcesses(describe=lambda pid: self._how.get(pid, ""))
        self._steps = StepTracker()
        self._conclusions = Conclusions(
            context.host, timeout, action, self._watch, snapshots or StackSnapshots(context)
        )
        self._control: Control | None = None  # once it has started
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        try:
            self._heartbeats = HeartbeatMemory()
        except OSError as error:
            logger.debug("there are no heartbeats: %s", error)

    # --- the extension ----------------------------------------------------------------------------

    def start(self, control: Control) -> None:
        """Start watching."""
        self._control = control
        try:
            self._find_py_spy()
        except FileNotFoundError as error:
            self._log_coarse(control, f"{error}")
        self.release()

    def stop(self, result: RunResult | None) -> None:
        """Stop watching."""
        del result
        self.rest()
        if self._heartbeats is not None and self._thread is None:
            self._heartbeats.close()
            self._heartbeats = None

    def rest(self) -> None:
        """Stop the thread until `release`, so that the process can fork."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(_WAIT)
            if not self._thread.is_alive():
                self._thread = None

    def release(self) -> None:
        """Start the thread, if there is none."""
        if self._thread is not None or self._control is None:
            return
        self._over = threading.Event()
        thread = threading.Thread(
            target=self._run, args=(self._control, self._over), name="plaunch-hang", daemon=True
        )
        start_thread(thread, blocks_signals=True)
        self._thread = thread

    # --- the rounds -------------------------------------------------------------------------------

    def environment(self, worker: WorkerInfo) -> dict[str, str]:
        """The variable that names the slot of a worker's heartbeats."""
        self._ranks[worker.global_rank] = worker.local_rank
        if self._heartbeats is None:
            return {}
        try:
            value = self._heartbeats.variable(worker.local_rank)
        except OSError as error:
            logger.warning("heartbeats of rank %d are not read: %s", worker.global_rank, error)
            return {}
        return {VARIABLE: value}

    def begin(self, round_: int, node: int, nodes: int) -> None:
        """Record a new round, with the rank of this node and the number of nodes."""
        self._ranks = {}
        self._conclusions.begin(WatchedRound(round_, node, nodes))

    # --- the thread -------------------------------------------------------------------------------

    def _run(self, control: Control, over: threading.Event) -> None:
        pause = pause_for(self._longest)
        while not over.wait(pause):
            began = self._clock()
            try:
                usual = self.sample(control, began, pause)
            except Exception:
                control.note_holds({})
                logger.exception("the detection of hangs failed, and is switched off")
                return
            # Samples of many workers, or on a busy machine, take long.
            pause = min(max(usual, _SHARE * (self._clock() - began)), _SLOWEST * usual)

    def sample(self, control: Control, now: float, pause: float) -> float:
        """Sample the workers, and act on the result.

        Args:
            control: the control of the agent.
            now: monotonic seconds.
            pause: the intended seconds since the last sample.

        Returns:
            Seconds until the next sample.
        """
        snapshot = control.snapshot()
        pids = dict(snapshot.pids) if snapshot.state is WorkerState.HEALTHY else {}
        beats = {rank: self._read_beat(rank) for rank in pids}
        timeouts = {rank: self._timeouts.of(beat) for rank, beat in beats.items()}
        progress = self._steps.sample(now, pids, beats)
        control.note_progress(progress)
        samples = self._sampler.sample(pids, beats, timeouts, self._watch.suspects())
        for reason in self._sampler.reasons.values():
            self._log_coarse(control, reason)
        self._how = {seen.pid: seen.hold for seen in samples.values() if seen.hold}
        holds = self._holds.sample(pids.values())
        control.note_holds({rank: holds[pid] for rank, pid in pids.items() if pid in holds})
        held = {rank: one for rank, one in control.held().items() if pids.get(rank) == one.pid}
        samples = {
            rank: sample._replace(output=self._output(snapshot.output, rank), is_held=rank in held)
            for rank, sample in samples.items()
        }
        finding = self._watch.sample(now, samples, pause)
        shortest = min(map(self._timeouts.outside, beats.values()), default=self._longest)
        late = self._late_holds.take(now, held, timeouts)
        steps = format_steps(progress) if finding.still else ""
        self._conclusions.update(
            control,
            WatchSample(now, snapshot, pids, timeouts, shortest, finding, held, late, steps),
        )
        # A learned timeout may be shorter than the previous one.
        return pause_for(min(timeouts.values(), default=self._longest))

    def _read_beat(self, rank: int) -> HeartbeatState:
        local_rank = self._ranks.get(rank)
        if local_rank is None or self._heartbeats is None:
            return HeartbeatState()
        return self._heartbeats.read(local_rank)

    def _output(self, counts: OutputCounts, rank: int) -> int:
        if not counts.by_worker:
            return counts.read_bytes
        return counts.by_worker.get(self._ranks.get(rank, -1), 0)

    def _log_coarse(self, control: Control, reason: str) -> None:
        self._conclusions.log_once(
            control,
            "stacks cannot be read, so --hang-timeout uses CPU time, system calls and output, "
            f"which is less precise: {reason}",
        )
