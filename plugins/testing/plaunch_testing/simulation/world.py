"""Runs one script: creates the world, lets its faults happen, and keeps the history."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from plaunch.agent.states import RequestKind
from plaunch_membership import shared

from plaunch_testing.simulation.hub import SimulatedHost, SimulatedProcess
from plaunch_testing.simulation.job_store import JobStoreServer
from plaunch_testing.simulation.network import SimulatedNetwork
from plaunch_testing.simulation.node import JobOptions, SimulatedNode
from plaunch_testing.simulation.script import LOSSES, FaultKind, StoreKind
from plaunch_testing.simulation.stores import SimulatedEtcd, SimulatedTcpStore
from plaunch_testing.simulation.training import Training

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch_testing.simulation.hub import Hub
    from plaunch_testing.simulation.modules import SimulatedSystem
    from plaunch_testing.simulation.script import InjectedFault, Script
    from plaunch_testing.simulation.stores import SimulatedStore

__all__ = ["HistoryLine", "SimulatedWorld"]

# Of all jobs. The last two are shorter than the defaults, so that a run is shorter.
_CONF = {"last_call_timeout": "2", "join_timeout": "60"}
# Virtual seconds in which all must have ended after the last fault: a round forms within
# `join_timeout`, may be left alone for `unreachable_timeout`, and the job has some attempts.
END_BOUND = 600.0


class HistoryLine(NamedTuple):
    """What has happened, when and where."""

    at: float
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.at:9.4f}  {self.where:<8}  {self.what}"


@dataclass
class HappenedFault:
    """A fault, and the node that it has hit."""

    fault: InjectedFault
    node: SimulatedNode | None
    had_effect: bool
    at: float
    host: SimulatedHost


class _ReservedPort:
    """A port that a node reserves."""

    port = 29500

    @classmethod
    def any(cls, within: tuple[int, int] | None = None) -> _ReservedPort:
        return cls()

    def close(self) -> None:
        pass


@dataclass
class SimulatedWorld:
    """One run.

    Args:
        system: the operating system, with the hub.
        script: what happens.
    """

    system: SimulatedSystem
    script: Script
    history: list[HistoryLine] = field(default_factory=list)
    nodes: list[SimulatedNode] = field(default_factory=list)
    happened: list[HappenedFault] = field(default_factory=list)

    def __post_init__(self) -> None:
        script, hub = self.script, self.system.hub
        # A node reserves no real port; which one it announces does not matter here.
        vars(shared)["HeldPort"] = _ReservedPort
        hub.begin(script.seed, preemption=0.02)
        self.system.begin()
        self.hub = hub
        self.network = SimulatedNetwork(hub, script.latency)
        kinds: dict[StoreKind, Callable[[Hub, SimulatedNetwork, SimulatedHost], SimulatedStore]] = {
            StoreKind.JOB: JobStoreServer,
            StoreKind.TCP: SimulatedTcpStore,
            StoreKind.ETCD: SimulatedEtcd,
        }
        self.server: SimulatedStore = kinds[script.store](hub, self.network, SimulatedHost("store"))
        self.training = Training(hub, script.duration, peers_fail=script.peers_fail)
        self.hosts = [
            SimulatedHost(
                f"n{index}",
                rate=1.0 + hub.random.uniform(-1e-4, 1e-4),
                offset=script.offsets[index],
                uptime=hub.random.uniform(100.0, 1e6),
                stop_time=script.stop_times[index],
            )
            for index in range(script.nodes)
        ]
        self._pids = 100
        self._last_nodes: dict[SimulatedHost, SimulatedNode] = {}
        budgets = {} if script.node_restarts is None else {"node": script.node_restarts}
        self.options = JobOptions(
            script.min_nodes,
            script.max_nodes,
            script.workers,
            script.max_restarts,
            budgets,
            _CONF,
            script.exclude_after,
            check_time=script.check_time,
        )
        self.is_over_in_time = False

    def had_fault(self, *kinds: FaultKind) -> bool:
        """Whether a fault of one of these kinds has had an effect."""
        return any(one.had_effect and one.fault.kind in kinds for one in self.happened)

    def run(self) -> None:
        """Run the script until all nodes have ended, and all faults are over."""
        tasks = [self.hub.spawn(self._start_all, "start")]
        tasks += [
            self.hub.spawn(lambda fault=fault: self._happen(fault), fault.kind.value)  # type: ignore[misc]
            for fault in self.script.faults
        ]
        last = max((fault.at + fault.lasts for fault in self.script.faults), default=0.0)
        self.is_over_in_time = self.hub.run(
            lambda: all(task.is_done for task in tasks) and all(n.is_over for n in self.nodes),
            last + END_BOUND,
        )

    def end(self) -> None:
        """Unwind what still runs."""
        self.hub.end()

    def note(self, where: str, what: str) -> None:
        """Add a line to the history."""
        self.history.append(HistoryLine(self.hub.now, where, what))

    # --- nodes ------------------------------------------------------------------------------------

    def _start_all(self) -> None:
        begun = sorted(zip(self.script.starts, self.hosts, strict=True), key=lambda each: each[0])
        for at, host in begun:
            self.hub.sleep(at - self.hub.now)
            self._start(host)

    def _start(self, host: SimulatedHost) -> SimulatedNode:
        self._pids += 1
        node = SimulatedNode(
            self.system,
            SimulatedProcess(host, self._pids),
            self.options,
            self.server,
            self.training,
            lambda node, text: self.note(node.name, text),
        )
        self.note(node.name, "the agent starts")
        self.nodes.append(node)
        self._last_nodes[host] = node
        return node

    # --- faults -----------------------------------------------------------------------------------

    def _happen(self, fault: InjectedFault) -> None:
        self.hub.sleep(fault.at)
        host = self.hosts[fault.node]
        node = self._last_nodes.get(host)
        if fault.requests and node is not None and not node.is_over:
            self.server.await_requests(node.process, fault.requests)
        what = self._hit(fault, host, node)
        self.happened.append(HappenedFault(fault, node, bool(what), self.hub.now, host))
        self.note("FAULT", f"{fault.kind.value}: {what or 'no effect'}")
        if what:
            self._undo(fault, host, node)

    def _hit(  # noqa: PLR0911 - one for each kind
        self, fault: InjectedFault, host: SimulatedHost, node: SimulatedNode | None
    ) -> str:
        """Let a fault happen; describe what it has hit, or nothing."""
        kind = fault.kind
        if kind.name.startswith("STORE"):
            return self._hit_store(fault)
        if kind is FaultKind.UNHEALTHY:
            if self.script.check_time is None:
                return ""
            host.is_healthy = False
            return host.name
        if kind is FaultKind.JOIN:
            if not host.is_up or (node is not None and not node.is_over):
                return ""
            return self._start(host).name
        if kind is FaultKind.CLOCK:
            host.offset += fault.value
            return f"{host.name} by {fault.value} s"
        if kind in (FaultKind.CUT, FaultKind.CUT_TO):
            self.network.cut(host, self.server.host)
        if kind in (FaultKind.CUT, FaultKind.CUT_FROM):
            self.network.cut(self.server.host, host)
        if kind in (FaultKind.CUT, FaultKind.CUT_TO, FaultKind.CUT_FROM):
            self.server.lose_host(host)
            return host.name
        if node is None or node.is_over:
            return ""
        return self._hit_node(fault, node)

    def _hit_store(self, fault: InjectedFault) -> str:
        kind, server = fault.kind, self.server
        if kind is FaultKind.STORE_SLOW:
            server.work = 0.2
        elif kind is FaultKind.STORE_LOSS:
            server.loss = fault.value / 100
            return f"{fault.value} % of all messages"
        elif not server.is_running or server.is_suspended:
            return ""
        elif kind is FaultKind.STORE_DOWN:
            server.crash()
        else:
            server.suspend()
        return "the store"

    def _hit_node(self, fault: InjectedFault, node: SimulatedNode) -> str:  # noqa: PLR0911, PLR0912 - as above
        kind, workers, agent = fault.kind, node.workers, node.agent
        if kind in (FaultKind.KILL_AGENT, FaultKind.CRASH):
            if kind is FaultKind.CRASH:
                node.host.is_up = False
            self.hub.kill(node.process)
            if workers is not None:
                workers.vanish()
            if kind is FaultKind.CRASH:
                self.server.lose_host(node.host)
            else:
                self.server.end_process(node.process)
            return node.name
        if kind is FaultKind.PAUSE:
            self.hub.stop(node.process)
            return node.name
        if kind is FaultKind.SIGNAL:
            node.ends_by_itself = True
            self.system.deliver(node.process, signal.SIGTERM)
            return node.name
        if workers is None or agent is None:
            return ""
        local_rank = fault.value % self.script.workers if fault.value > 0 else 0
        if kind in (FaultKind.FAIL, FaultKind.KILLED):
            return node.name if workers.fail(local_rank, fault.value) else ""
        if kind is FaultKind.EARLY:
            return node.name if workers.end_early(local_rank) else ""
        if kind is FaultKind.UNKILLABLE:
            node.traits.is_unkillable = True
            return node.name
        if kind is FaultKind.RESIST:
            node.traits.stop_time = min(fault.lasts, 30.0)
            return node.name
        if kind is FaultKind.HANG:
            ranks = sorted(workers.pids())
            if not ranks:
                return ""
            agent.report_hang(ranks[0], "simulated")
            return f"rank {ranks[0]} on {node.name}"
        requests = {
            FaultKind.STOP_JOB: RequestKind.STOP,
            FaultKind.RESTART_JOB: RequestKind.RESTART,
            FaultKind.LEAVE: RequestKind.LEAVE,
        }
        node.ends_by_itself |= kind is FaultKind.LEAVE
        agent.request(requests[kind], "simulated", "the operator")
        return node.name

    def _undo(self, fault: InjectedFault, host: SimulatedHost, node: SimulatedNode | None) -> None:
        """End a fault, if it is one that ends."""
        kind = fault.kind
        if kind not in (*LOSSES, FaultKind.UNHEALTHY):
            return
        self.hub.sleep(fault.lasts)
        self.note("FAULT", f"over: {fault.kind.value}")
        if kind in (FaultKind.CUT, FaultKind.CUT_TO):
            self.network.repair(host, self.server.host)
        if kind in (FaultKind.CUT, FaultKind.CUT_FROM):
            self.network.repair(self.server.host, host)
        if kind is FaultKind.PAUSE and node is not None:
            self.hub.resume(node.process)
        if kind is FaultKind.STORE_PAUSE:
            self.server.resume()
        if kind is FaultKind.UNHEALTHY:
            host.is_healthy = True
        if kind is FaultKind.STORE_SLOW:
            self.server.work = 0.0
        if kind is FaultKind.STORE_LOSS:
            self.server.loss = 0.0
        if kind is FaultKind.STORE_DOWN:
            self.server.restart(keeps_data=self.script.store is StoreKind.ETCD)
            self.network.wake()
        if kind is FaultKind.CRASH:
            host.is_up = True
            self.network.wake()
        if kind in (FaultKind.KILL_AGENT, FaultKind.CRASH) and fault.returns:
            latest = self._last_nodes[host]
            if latest.is_over and host.is_up:
                self._start(host)
