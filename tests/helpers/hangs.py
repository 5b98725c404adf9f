"""Nodes whose workers are watched for hangs, with a fake clock, sampler and store."""

from __future__ import annotations

from plaunch.agent import Snapshot, WorkerState
from plaunch.plugin import PluginContext
from plaunch_hang.extension import HangExtension
from plaunch_hang.snapshots import StackSnapshots
from plaunch_hang.stacks import ProcessStacks, StackFrame, ThreadStack
from plaunch_hang.watch import WorkerSample

FILE = "/home/me/train.py"
PIDS = {4: 104, 5: 105, 6: 106}
PAUSE = 5.0  # seconds between two samples, for a timeout of 100


def stacks_of(pids):
    """Rank 5 loads a batch; the others wait for it."""
    place = {105: StackFrame("load_batch", FILE, 6)}
    return {
        rank: ProcessStacks(
            pid,
            threads=(
                ThreadStack("MainThread", pid, (place.get(pid, StackFrame("step", FILE, 10)),)),
            ),
        )
        for rank, pid in pids.items()
    }


class Control:
    """Records log lines, reports and published texts; texts are shared with the job, by node."""

    def __init__(self, pids, texts=None, node=0):
        self.said, self.reported, self.published_here = [], [], []
        self.state, self.round, self.pids = WorkerState.HEALTHY, 0, pids
        self.progress, self.succeeded, self.holds, self.noted_holds = {}, {}, {}, {}
        self.is_job_wide = texts is not None
        self.can_reach_store = True
        self._texts, self._node = texts, f"id-{node}"

    def snapshot(self):
        ranks = tuple(self.pids)
        pids = self.pids if self.state is WorkerState.HEALTHY else {}
        return Snapshot(
            self.state,
            self.round,
            0,
            ranks,
            pids,
            is_job_wide=self.is_job_wide,
            succeeded=self.succeeded,
        )

    def note_progress(self, progress):
        self.progress = progress

    def held(self):
        return {**self.noted_holds, **self.holds}

    def note_holds(self, holds):
        self.noted_holds = holds

    def say(self, text):
        self.said.append(text)

    def report_hang(self, rank, text, *, is_final=False):
        self.reported.append((rank, text, is_final))

    def publish(self, name, text):
        assert name == "hang"
        assert len(text) <= 16 << 10
        self.published_here.append(text)
        if self.can_reach_store:
            self._texts[self._node] = text

    def published(self, name, timeout=1.0):
        assert (name, timeout) == ("hang", 1.0)
        return dict(self._texts) if self.can_reach_store else {}


class WorkerSampler:
    """Returns samples that a test controls."""

    def __init__(self, pids):
        self.places = dict.fromkeys(pids, 0)
        self.holds = {}
        self.reasons = {}
        self.seen = []

    def sample(self, pids, beats, timeouts, deep):
        self.seen.append((dict(pids), beats, timeouts))
        return {
            rank: WorkerSample(
                pid,
                self.places[rank],
                beats=beats[rank].number,
                timeout=timeouts[rank],
                hold=self.holds.get(rank, ""),
            )
            for rank, pid in pids.items()
        }


class Node:
    """One node; `texts` are those of a job of several nodes."""

    def __init__(
        self,
        timeout=100.0,
        action="warn",
        log_dir=None,
        *,
        pids=PIDS,
        host="gpu-7",
        texts=None,
        node=0,
        **more,
    ):
        context = PluginContext("job", "role", host, log_dir)
        self.sampler, self.control, self.now = (
            WorkerSampler(pids),
            Control(pids, texts, node),
            1000.0 * node,
        )
        self.extension = HangExtension(
            context,
            timeout,
            action,
            sampler=self.sampler,
            snapshots=StackSnapshots(context, stacks_of),
            **more,
        )

    def sample(self, count=1, pause=PAUSE):
        for _ in range(count):
            self.now += pause
            self.pause = self.extension.sample(self.control, self.now, pause)

    def move(self, *ranks):
        for rank in ranks or self.sampler.places:
            self.sampler.places[rank] += 1

    def close(self):
        self.extension.stop(None)
