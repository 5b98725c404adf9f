"""Jobs of thousands of nodes in virtual time, and what each node sends and receives.

The nodes' routines run one operation after the other, in the order in which they become ready. So
all counts are the same each time.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict, deque
from dataclasses import replace

from plaunch.rendezvous import JobSettings, NodeSettings
from plaunch_membership.agent_requests import AgentRequests
from plaunch_membership.arrivals import Arrivals
from plaunch_membership.job_lookup import JobLookup
from plaunch_membership.leader import LeaderRoutine
from plaunch_membership.membership import Membership
from plaunch_membership.node import NodeIdentity
from plaunch_membership.operations import Sleep, Wait
from plaunch_membership.options import Timing
from plaunch_membership.records import RecordCodec
from plaunch_membership.testing import MemoryBoard
from plaunch_membership.watcher import WatcherRoutine
from plaunch_membership.writer import WriterRoutine

RUN_ID = "crowd"


class _Board(MemoryBoard):
    """Wakes the tasks that wait for a key."""

    def __init__(self):
        super().__init__()
        self.parked = defaultdict(list)
        self.ready = deque()

    def wake(self, keys):
        for key in keys:
            self.ready.extend(self.parked.pop(key, ()))


class _Task:
    def __init__(self, node, routine):
        self.node, self.routine = node, routine
        self.store = node.crowd.board.connect()
        self.operation = None
        self.is_nudged = False  # its sleep ends, or the next one
        self.turn = 0  # counts its operations, so that an old alarm is recognised


class CrowdNode:
    """One node: its routines, and the connections that count what they transfer."""

    def __init__(self, crowd, number):
        self.crowd = crowd
        size = crowd.size
        identity = NodeIdentity(
            node=f"node{number:05}~1",
            host=f"node{number:05}",
            pid=1,
            address=f"10.0.{number >> 8}.{number & 255}",
            run_id=RUN_ID,
            min_nodes=size,
            max_nodes=size,
            job=JobSettings(),
            settings=NodeSettings(),
        )
        self.membership = Membership(
            identity,
            crowd.timing,
            RecordCodec(RUN_ID),
            absence_is_loss=True,
            clock=lambda: crowd.now,
            wall_clock=lambda: crowd.now,
        )
        lookup = JobLookup(self.membership, make_name=lambda: f"{number:012}")
        self.writer = WriterRoutine(self.membership, lookup, hold_port=lambda: 20000)
        self.agent = AgentRequests(self.membership, self.writer.reports)
        self.arrivals = Arrivals(self.membership)
        self.tasks = []
        self.leads = False
        self.membership.on_nudge(self._nudge)
        self.agent.want_round()
        self._begin(self.writer.write(self._opened))

    def _begin(self, routine):
        self.tasks.append(_Task(self, routine))
        self.crowd.board.ready.append(self.tasks[-1])

    def _opened(self):
        self._begin(WatcherRoutine(self.membership).watch())
        self._nudge()

    def _nudge(self):
        state = self.membership.state
        if state is not None and state.leader == self.membership.me and not self.leads:
            self.leads = True
            self._begin(LeaderRoutine(self.membership).lead())
        for task in self.tasks:
            task.is_nudged = True
            if isinstance(task.operation, Sleep):
                self.crowd.wake(task)

    @property
    def place(self):
        return self.membership.part.place

    @property
    def cost(self):
        """How many requests it has sent, and the bytes that it has read and written."""
        stores = [task.store for task in self.tasks]
        return (
            sum(store.operations.total() for store in stores),
            sum(store.bytes_read for store in stores),
            sum(store.bytes_written for store in stores),
        )


class Crowd:
    """A job of `size` nodes."""

    def __init__(self, size, **timing):
        self.size = size
        self.timing = Timing(**{"keep_alive_interval": 1000.0, **timing})
        self.now = 1000.0
        self.board = _Board()
        self.nodes = []
        self._alarms = []
        self._order = itertools.count()

    def add(self, count):
        """Add nodes, which all start at this moment."""
        first = len(self.nodes)
        self.nodes += [CrowdNode(self, number) for number in range(first, first + count)]

    def run(self, seconds=0.0):
        """Do what is due within so many seconds."""
        end = self.now + seconds
        ready = self.board.ready
        while True:
            while ready:
                self._run(ready.popleft())
            while self._alarms and self._is_past(self._alarms[0]):
                heapq.heappop(self._alarms)
            if not self._alarms or self._alarms[0][0] > end:
                self.now = end
                return
            self.now, _, task, _ = heapq.heappop(self._alarms)
            if isinstance(task.operation, Wait):
                self.board.parked[task.operation.key].remove(task)
            ready.append(task)

    @staticmethod
    def _is_past(alarm):
        _, _, task, turn = alarm
        return task.turn != turn or task.operation is None

    def wake(self, task):
        """End the sleep of a task."""
        task.operation, task.is_nudged = None, False
        self.board.ready.append(task)

    def _run(self, task):
        operation, task.operation, result = task.operation, None, None
        if isinstance(operation, Wait):
            operation = replace(operation, timeout=0.0)
        if operation is not None:
            result = None if isinstance(operation, Sleep) else operation.run(task.store)
        try:
            operation = task.operation = task.routine.send(result)
        except StopIteration:
            return
        task.turn += 1
        if isinstance(operation, Wait) and operation.key not in self.board.data:
            self.board.parked[operation.key].append(task)
            self._set_alarm(task, operation.timeout)
        elif isinstance(operation, Sleep) and not task.is_nudged:
            self._set_alarm(task, operation.seconds)
        elif isinstance(operation, Sleep):
            self.wake(task)
        else:  # one operation of each task in turn, as over a real store
            self.board.ready.append(task)

    def _set_alarm(self, task, seconds):
        heapq.heappush(self._alarms, (self.now + seconds, next(self._order), task, task.turn))
