"""Jobs of real agents with faults from a seed, and the checks that simulated jobs pass, too.

    python tests/fault_injection/jobs.py [--store job|tcp|etcd] [--runs N] [--seed N]
                               [--cables] [--preload MODULE]

Each run is a job of several agents with small workers. The script of a seed says how many there are
and what happens when: it is made by `plaunch_testing.simulation.make_script`, with the faults that
exist on one machine. Workers exit, are killed, hang and resist; agents and whole nodes are killed
or suspended, get signals and requests of plaunchctl, come and go; the store is killed or suspended.
With `--cables` each node is a namespace (which needs root) whose cable is cut. With `--preload` the
workers are forked after that import. What was observed becomes a `RunRecord`, and
`plaunch_testing.simulation.checks` judges it. A finding is printed with its seed, and the folder
of its run is kept.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fault_injection.observations import (
    WORKER,
    Observations,
    WorkerSettings,
    load_factor,
    output_records,
    processes_with,
    read_etcd_keys,
    read_lines,
    written_lines,
)
from plaunch_rendezvous_etcd.testing import EtcdServer
from plaunch_testing.simulation import FaultKind, StoreKind, make_script
from plaunch_testing.simulation.checks import find_faults
from plaunch_testing.simulation.record import AgentRecord, FaultRecord, RunRecord

from helpers.network import Network
from helpers.ports import free_port
from helpers.processes import children_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from plaunch_testing.simulation import InjectedFault, Script

BOUND = 150.0  # seconds for the end of a job after its last fault, on an idle machine
CONF = "keep_alive_interval=0.5,keep_alive_max_attempt=8,last_call_timeout=1,join_timeout=30"
LOOK = 0.05  # seconds between two observations
LEFT_BOUND = 20.0  # seconds until nothing is left of a job, on an idle machine
LONGEST = 8.0  # seconds of a fault
SPEED = 0.5  # of virtual seconds: a script with a real job takes half of the time
PRECISION = 0.5  # seconds between a fault and its note
HANG_NOTICE = 3.0  # seconds after which a test reports that ranks wait for one that is gone
BARRIER = 30  # seconds that nodes wait for each other after their success
EARLY = 4  # in one of so many jobs, faults do not wait for a first world
TRIES, RETRY = 20, 0.25  # how often a fault waits for workers that it can hit; seconds
SIGNALS = ("SIGKILL", "SIGSEGV", "SIGABRT")
TAG = "PLAUNCH_TEST_JOB"
PLAUNCHCTL = "from plaunch_control.cli import entry_point; entry_point()"

# The faults that exist on one machine, chosen as often as they are listed.
KINDS = (
    FaultKind.FAIL, FaultKind.FAIL, FaultKind.KILLED, FaultKind.KILLED, FaultKind.EARLY,
    FaultKind.HANG, FaultKind.RESIST, FaultKind.KILL_AGENT, FaultKind.KILL_AGENT, FaultKind.CRASH,
    FaultKind.PAUSE, FaultKind.PAUSE, FaultKind.SIGNAL, FaultKind.STOP_JOB, FaultKind.RESTART_JOB,
    FaultKind.LEAVE, FaultKind.JOIN, FaultKind.STORE_DOWN, FaultKind.STORE_PAUSE,
    FaultKind.UNHEALTHY,
)  # fmt: skip
OF_WORKERS = (FaultKind.FAIL, FaultKind.KILLED, FaultKind.EARLY, FaultKind.HANG)
CABLES = (FaultKind.CUT, FaultKind.CUT, FaultKind.CUT)
_REQUESTS = {
    FaultKind.STOP_JOB: "stop", FaultKind.RESTART_JOB: "restart", FaultKind.LEAVE: "leave",
}  # fmt: skip
AFRESH = "started afresh"  # in the launcher's message about workers that it does not fork


@dataclass(eq=False)
class Node:
    """One agent, and what is known of it."""

    number: int
    process: subprocess.Popen[bytes]
    log: Path
    record: AgentRecord
    told: int = 0  # number of faults requested from it
    is_cut_off: bool = False  # whether it was killed, so that its last output may be missing

    def is_running(self) -> bool:
        return self.process.poll() is None


@dataclass(eq=False)
class Happened:
    """A fault of the script that was injected, or an effect of one."""

    kind: FaultKind
    host: str
    at: float
    lasts: float = 0.0
    value: int = 0
    had_effect: bool = True
    request: subprocess.Popen[bytes] | None = None
    node: Node | None = None

    def to_record(self) -> FaultRecord:
        return FaultRecord(self.kind, self.host, self.at, self.lasts, self.had_effect, self.value)


@dataclass
class Story:
    """What has happened, for people."""

    began: float
    lines: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.lines.append(f"{time.time() - self.began:7.2f} s  {text}")


class Job:
    """One job in its own folder.

    Args:
        folder: for its files.
        script: what happens.
        network: the network of the nodes, if any.
        etcd: the server, if the store needs one.
        preload: the module that is imported before workers are forked, if any.
        bug: one of `helpers.simulated_bugs` to put into the agents, if any.
    """

    def __init__(
        self,
        folder: Path,
        script: Script,
        network: Network | None = None,
        etcd: EtcdServer | None = None,
        preload: str = "",
        bug: str = "",
    ) -> None:
        self.folder, self.script, self.network, self.etcd = folder, script, network, etcd
        self.preload, self._bug = preload, bug
        self.nodes: list[Node] = []
        self.happened: list[Happened] = []
        self.story = Story(time.time())
        self.observations = Observations(folder)
        self.record: RunRecord | None = None
        self._latest: dict[int, Node] = {}
        self._cut: dict[int, int] = Counter()
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._hosts_store = etcd is None
        self._temporary = folder / "tmp"
        self._temporary.mkdir(exist_ok=True)
        self._sockets = Path(tempfile.mkdtemp(prefix="pl", dir="/tmp"))  # paths are limited
        self._has_names = os.geteuid() == 0
        host = "127.0.0.1" if network is None else network.address(0)
        port = free_port()
        if etcd is not None:
            host, _, text = etcd.endpoint.rpartition(":")
            host, port = (host if network is None else network.own_address()), int(text)
        restarts = f"{script.max_restarts}"
        if script.node_restarts is not None:
            restarts += f",node:{script.node_restarts}"
        self._options = [
            f"--nnodes={script.min_nodes}:{script.max_nodes}",
            f"--nproc-per-node={script.workers}",
            f"--max-restarts={restarts}",
            f"--rdzv-backend={'etcd-v2' if etcd else 'c10d'}",
            f"--rdzv-endpoint={host}:{port}",
            f"--rdzv-id=chaos-{folder.name}",
            f"--exit-barrier-timeout={BARRIER}",
            "--shutdown-timeout=4",
            f"--log-dir={folder / 'logs'}",
            "--event-log-handler=jsonl",
            "--failure-bundles=none",
            "--plugins=fault_injection.node_recorder",
        ]
        if script.exclude_after:
            self._options.append(f"--exclude-node-after={script.exclude_after}")
        if preload:
            self._options.append(f"--preload={preload}")

    # --- nodes ------------------------------------------------------------------------------------

    def start(self, number: int) -> None:
        """Start the agent of a node."""
        script = self.script
        conf = CONF
        if self.etcd is None:
            conf += f",is_host={'false' if number else 'true'}"
            if script.store is StoreKind.TCP:
                conf += ",store=torch"
        within = [] if self.network is None else [*self.network.within(number)]
        if self._has_names:
            within += ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', f"n{number}"]
        start = len([node for node in self.nodes if node.number == number])
        name = f"n{number}.{start}"
        # Without `site` an interpreter starts sooner, and cannot become a fork server.
        interpreter = [sys.executable] if self.preload else [sys.executable, "-S", "-E"]
        ranks = range(script.max_nodes * script.workers)
        faults = [
            f"kill:rank={rank},times=inf,signal={name_},step-file=kill.{number}.{rank}.{name_}"
            for rank in ranks
            for name_ in SIGNALS
        ]
        more = []
        if script.check_time is not None:
            more.append(f"--health-check=command:test ! -e {self.folder}/unhealthy.{number}")
        settings = WorkerSettings(
            lines=500, stream=2, work=script.duration * SPEED, meets=True,
            stop_time=script.stop_times[number] * SPEED, node=f"n{number}",
            preload=self.preload or "none",
        )  # fmt: skip
        log = self.folder / f"{name}.log"
        environ = {
            **os.environ,
            "LOGLEVEL": "INFO",
            "TMPDIR": str(self._temporary),
            "PLAUNCH_RUNTIME_DIR": str(self._sockets),
            "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
            TAG: f"{self.folder.name}-{number}-{start}.",
            **({"PLAUNCH_TEST_BUG": self._bug} if self._bug else {}),
        }
        with log.open("wb") as output:
            process = subprocess.Popen(
                [
                    *(*within, sys.executable, "-m", "plaunch", *self._options),
                    *(f"--rdzv-conf={conf}", f"--inject={';'.join(faults)}", *more, "--no-python"),
                    *(*interpreter, str(WORKER), settings.to_argument()),
                ],
                cwd=self.folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        node = Node(number, process, log, AgentRecord(name, f"n{number}", time.time()))
        self.nodes.append(node)
        self._latest[number] = node
        self.story.note(f"{name} starts, pid {process.pid}")

    def _processes_of(self, node: Node) -> list[int]:
        start = [one for one in self.nodes if one.number == node.number].index(node)
        return [*processes_with(f"{TAG}={self.folder.name}-{node.number}-{start}.".encode())]

    # --- faults -----------------------------------------------------------------------------------

    def _inject(self, fault: InjectedFault, tries: int = TRIES) -> None:
        node = self._latest.get(fault.node)
        if fault.kind in OF_WORKERS and tries and node is not None and node.is_running():
            running = self.observations.look()
            if not any(entry["agent"] == node.process.pid for entry in running):
                # On a busy machine, workers take their time to start.
                self._at(RETRY, partial(self._inject, fault, tries - 1))
                return
        lasts = min(fault.lasts * SPEED, LONGEST)
        one = Happened(fault.kind, f"n{fault.node}", time.time(), 0.0, fault.value, False)
        self.happened.append(one)
        if fault.kind.name.startswith("STORE"):
            what = self._hit_store(one, fault, lasts)
        elif fault.kind is FaultKind.CUT:
            what = self._hit_cable(one, fault, lasts)
        elif fault.kind is FaultKind.UNHEALTHY:
            what = self._hit_health(one, fault, lasts)
        elif fault.kind is FaultKind.JOIN:
            what = ""
            if node is not None and not node.is_running():
                self.start(fault.node)
                what = one.host
        elif node is None or not node.is_running():
            what = ""
        else:
            one.node = node
            what = self._hit_node(one, fault, node, lasts)
            if what and node.number == 0 and self._hosts_store:
                self._lose_host(one, fault, lasts)
        one.had_effect = bool(what)
        self.story.note(f"FAULT {fault.kind.value}: {what or 'no effect'}")

    def _lose_host(self, one: Happened, fault: InjectedFault, lasts: float) -> None:
        """What hits the host of the store hits the store."""
        if fault.kind in (FaultKind.KILL_AGENT, FaultKind.CRASH, FaultKind.SIGNAL):
            self.happened.append(Happened(FaultKind.STORE_DOWN, "", one.at))
        elif fault.kind is FaultKind.PAUSE:
            self.happened.append(Happened(FaultKind.STORE_SLOW, "", one.at, lasts))

    def _hit_store(self, one: Happened, fault: InjectedFault, lasts: float) -> str:
        one.host, one.lasts = "", lasts
        if self.etcd is not None:
            if fault.kind is FaultKind.STORE_DOWN:
                self.etcd.kill()
                self._at(lasts, self.etcd.start)
                return f"etcd, for {lasts:.2f} s"
            self.etcd.pause()
            self._at(lasts, self.etcd.resume)
            return f"etcd, for {lasts:.2f} s"
        servers = self._store_servers()
        if not servers:
            return ""
        if fault.kind is FaultKind.STORE_DOWN:
            one.lasts = 0.0
            return _send(servers[0], signal.SIGKILL)
        what = _send(servers[0], signal.SIGSTOP)
        self._at(lasts, partial(_send, servers[0], signal.SIGCONT))
        return what and f"{what}, for {lasts:.2f} s"

    def _store_servers(self) -> list[int]:
        host = self._latest.get(0)
        if host is None or not host.is_running():
            return []
        with contextlib.suppress(OSError):
            return [
                pid
                for pid in children_of(host.process.pid)
                if b"job_store" in Path(f"/proc/{pid}/cmdline").read_bytes()
            ]
        return []

    def _hit_cable(self, one: Happened, fault: InjectedFault, lasts: float) -> str:
        if self.network is None:
            return ""
        one.lasts = lasts
        self.network.cut(fault.node)
        self._cut[fault.node] += 1
        self._at(lasts, partial(self._mend, fault.node))
        if fault.node == 0 and self._hosts_store:
            self.happened.append(Happened(FaultKind.STORE_LOSS, "", one.at, lasts))
        return f"n{fault.node}, for {lasts:.2f} s"

    def _mend(self, number: int) -> None:
        self._cut[number] -= 1
        if self.network is not None and not self._cut[number]:
            self.network.mend(number)

    def _hit_health(self, one: Happened, fault: InjectedFault, lasts: float) -> str:
        if self.script.check_time is None:
            return ""
        one.lasts = lasts
        path = self.folder / f"unhealthy.{fault.node}"
        path.touch()
        self._at(lasts, lambda: path.unlink(missing_ok=True))
        return f"n{fault.node}, for {lasts:.2f} s"

    def _hit_node(self, one: Happened, fault: InjectedFault, node: Node, lasts: float) -> str:
        kind, process = fault.kind, node.process
        if kind in (FaultKind.KILL_AGENT, FaultKind.CRASH):
            node.is_cut_off = True
            if kind is FaultKind.CRASH:
                process.send_signal(signal.SIGSTOP)
                for pid in self._processes_of(node):
                    _send(pid, signal.SIGKILL)
            process.kill()
            process.wait()
            node.record.ended_at = time.time()
            if fault.returns:
                self._at(lasts, partial(self._return, node))
            return node.record.name
        if kind is FaultKind.PAUSE:
            one.lasts = lasts
            process.send_signal(signal.SIGSTOP)
            self._at(lasts, partial(process.send_signal, signal.SIGCONT))
            return f"{node.record.name} for {lasts:.2f} s"
        if kind is FaultKind.SIGNAL:
            node.record.ends_by_itself = node.record.is_asked_to_end = True
            process.terminate()
            return node.record.name
        if kind in _REQUESTS:
            one.request = self._request(node, _REQUESTS[kind])
            return node.record.name
        if kind is FaultKind.RESIST:
            (self.folder / f"resist.n{node.number}").write_text(f"{lasts:.2f}")
            return f"{node.record.name} for {lasts:.2f} s"
        running = [e for e in self.observations.look() if e["agent"] == process.pid]
        if not running:
            return ""
        entry = running[max(fault.value, 0) % len(running)]
        what = f"rank {entry['rank']} (pid {entry['pid']}) on {node.record.name}"
        if kind is FaultKind.HANG:
            self._write(f"hang.{process.pid}", "")
        elif kind is FaultKind.KILLED:
            node.told += 1
            name = signal.Signals(-fault.value).name
            self._write(f"kill.{node.number}.{entry['rank']}.{name}", str(node.told))
        else:
            one.value = fault.value if kind is FaultKind.FAIL else 0
            self._write(f"exit.{entry['pid']}", str(one.value))
            if kind is FaultKind.EARLY:
                self._at(HANG_NOTICE, partial(self._report_hang, entry))
        return what

    def _report_hang(self, early: dict[str, object]) -> None:
        """Report a hang where ranks wait for one that has ended early."""
        for entry in self.observations.look():
            if (entry["round"], entry["attempt"]) == (early["round"], early["attempt"]):
                self.story.note(f"rank {entry['rank']} is reported as hanging")
                self._write(f"hang.{entry['agent']}", "")
                return

    def _request(self, node: Node, what: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", PLAUNCHCTL, what, str(node.process.pid)],
            env={**os.environ, "PLAUNCH_RUNTIME_DIR": str(self._sockets)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _return(self, node: Node) -> None:
        if self._latest[node.number] is node:
            self.start(node.number)

    def _write(self, name: str, text: str) -> None:
        part = self.folder / f".{name}"
        part.write_text(text)
        part.rename(self.folder / name)

    def _at(self, after: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._later, (time.monotonic() + after, next(self._count), action))

    # --- the run ----------------------------------------------------------------------------------

    def run(self) -> list[str]:
        """Run the job; return what is wrong with it."""
        script = self.script
        for number, at in enumerate(script.starts):
            self._at(at * SPEED, partial(self.start, number))
        bound = BOUND * load_factor()
        deadline = time.monotonic() + bound
        waits = script.seed % EARLY != 0  # else faults begin before there is a world
        if not waits:
            self._schedule_faults(1.0)
        while self._later or any(node.is_running() for node in self.nodes):
            if waits and self._has_world():
                waits = False
                # As many of them as in the simulator, in which agents start at once, hit training.
                self._schedule_faults(script.duration / (script.duration + 4.0))
                deadline = time.monotonic() + bound
            while self._later and self._later[0][0] <= time.monotonic():
                heapq.heappop(self._later)[2]()
            self._observe()
            if time.monotonic() > deadline:
                break
            time.sleep(LOOK)
        return self._judge()

    def _schedule_faults(self, speed: float) -> None:
        for fault in self.script.faults:
            self._at(fault.at * SPEED * speed, partial(self._inject, fault))

    def _has_world(self) -> bool:
        """Whether all ranks of a round have started."""
        entries = [one for one in self.observations.ledger() if one["event"] == "start"]
        rounds = Counter((one["round"], one["master"]) for one in entries)
        return any(rounds[one["round"], one["master"]] >= one["world"] for one in entries[-1:])

    def _observe(self) -> None:
        self.observations.look()
        for node in self.nodes:
            if node.record.ended_at is None and not node.is_running():
                node.record.ended_at = time.time()
                self.story.note(f"{node.record.name} ends with {node.process.returncode}")

    def _judge(self) -> list[str]:
        self._observe()
        unfinished = [node.record.name for node in self.nodes if node.is_running()]
        left = [] if unfinished else self._find_left()
        for request in (one.request for one in self.happened):
            if request is not None:
                request.wait()
        self.record = record = self._to_record(unfinished, left)
        return [*find_faults(record), *self._find_wrong_forks()]

    def _find_left(self) -> list[str]:
        tag = f"{TAG}={self.folder.name}-".encode()
        deadline = time.monotonic() + LEFT_BOUND * load_factor()
        while (left := processes_with(tag)) and time.monotonic() < deadline:
            time.sleep(LOOK)
        self.observations.look()
        found = [f"process {pid} ({title})" for pid, title in left.items()]
        if not any(node.is_cut_off for node in self.nodes):
            files = [*self._temporary.iterdir(), *self._sockets.iterdir()]
            found += [f"the file {path.name}" for path in files]
        return found

    def _to_record(self, unfinished: Sequence[str], left: Sequence[str]) -> RunRecord:
        script, seen = self.script, self.observations
        names = {n.process.pid: (n.record.name, n.record.host) for n in self.nodes}
        for one in self.happened:
            if one.request is not None and one.had_effect:
                one.had_effect = one.request.returncode == 0
                if (
                    one.had_effect
                    and one.node is not None
                    and one.kind is not FaultKind.RESTART_JOB
                ):
                    one.node.record.is_asked_to_end = True
                    one.node.record.ends_by_itself |= one.kind is FaultKind.LEAVE
        # Those of workers had an effect if a worker or a launcher has noted that.
        faults = [
            one.to_record()
            for one in self.happened
            if one.kind not in (FaultKind.FAIL, FaultKind.KILLED, FaultKind.EARLY, FaultKind.HANG)
        ]
        hosts = {pid: host for pid, (_, host) in names.items()}
        for entry in (e for e in seen.ledger() if e["event"] == "exit"):
            kind = FaultKind.FAIL if entry["code"] else FaultKind.EARLY
            host = hosts.get(entry["agent"], "")
            faults.append(FaultRecord(kind, host, entry["at"], value=entry["code"]))
        for line in seen.injected():
            value = -signal.Signals[re.findall(r"signal=(\w+)", line["fault"])[0]].value
            host = hosts.get(line["agent_pid"], "")
            faults.append(
                FaultRecord(FaultKind.KILLED, host, line["timestamp"] - PRECISION, value=value)
            )
        for entry in (e for e in seen.records() if e["event"] == "hang"):
            host = hosts.get(entry["agent"], "")
            faults.append(FaultRecord(FaultKind.HANG, host, entry["at"]))
        faults.sort(key=lambda fault: fault.at)
        # Failures of workers are known more exactly.
        others = [one.at for one in self.happened if one.had_effect and one.kind not in OF_WORKERS]
        rounds = seen.rounds(names, others)
        for node in self.nodes:
            record, code = node.record, node.process.returncode
            seen.complete(record, node.process.pid, rounds)
            if code is not None and not node.is_cut_off:
                record.exit_code = 128 - code if code < 0 else code
            record.error = node.log.read_text(errors="replace")[-300:]
            if record.is_success_sure and record.ended_at is not None:
                last = [one.ends.get(record.name, record.ended_at) for one in rounds]
                record.has_waited_for_others = record.ended_at - max(last) >= BARRIER - 1
        return RunRecord(
            script.min_nodes, script.max_nodes, script.workers,
            script.max_restarts + (script.node_restarts or 0),
            latency=0.01,
            faults=faults,
            rounds=rounds,
            nodes=[node.record for node in self.nodes],
            errors=[*self._find_errors()],
            unfinished=unfinished,
            keys=[] if self.etcd is None else read_etcd_keys(self.etcd.endpoint),
            leftovers=left,
            outputs=self._outputs(),
            precision=PRECISION * load_factor(),
        )  # fmt: skip

    def _outputs(self):
        lines = itertools.chain.from_iterable(
            node.log.read_text(errors="replace").splitlines() for node in self.nodes
        )
        delivered = read_lines(lines, is_mixed=True, may_be_cut=True)
        cut = [node.process.pid for node in self.nodes if node.is_cut_off]
        return output_records(delivered, written_lines(self.observations.ledger()), cut)

    def _find_errors(self) -> Iterator[str]:
        for node in self.nodes:
            text = node.log.read_text(errors="replace")
            for word in ("Traceback", "internal error"):
                if word in text:
                    yield f"{node.record.name} says {word!r}: {text[text.index(word) :][:300]}"

    def _find_wrong_forks(self) -> Iterator[str]:
        """Workers are not forked, and their launcher logs no valid reason."""
        if not self.preload:
            return
        for node in self.nodes:
            is_excused = AFRESH in node.log.read_text(errors="replace")
            fresh = [
                entry
                for entry in self.observations.ledger()
                if entry["agent"] == node.process.pid and not entry["forked"]
            ]
            if fresh and not is_excused:
                yield f"forks: {node.record.name} has not forked, and says nothing: {fresh[0]}"

    def end(self) -> None:
        """Stop all processes."""
        for node in self.nodes:
            with contextlib.suppress(ProcessLookupError):
                node.process.send_signal(signal.SIGCONT)
                node.process.kill()
            node.process.wait()
        for pid in processes_with(f"{TAG}={self.folder.name}-".encode()):
            _send(pid, signal.SIGKILL)
        shutil.rmtree(self._sockets, ignore_errors=True)

    def describe(self) -> str:
        """Describe the run on one page."""
        return "\n".join([self.script.describe(), *self.story.lines])


def _send(pid: int, signum: int) -> str:
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return ""
    return f"{signal.Signals(signum).name} for {pid}"


STORES = tuple(StoreKind)


@contextlib.contextmanager
def surroundings(
    store: StoreKind, nodes: int, cables: bool
) -> Iterator[tuple[Network | None, EtcdServer | None]]:
    """The network and servers of a job."""
    with contextlib.ExitStack() as stack:
        network = None
        if cables:
            network = Network(nodes)
            stack.callback(network.remove)
            network.build()
        etcd = None
        if store is StoreKind.ETCD:
            host = "127.0.0.1" if network is None else network.own_address()
            etcd = stack.enter_context(EtcdServer(host=host))
        yield network, etcd


def run(
    store: StoreKind | None,
    seed: int,
    *,
    cables: bool = False,
    preload: str = "",
    report: Callable[[Job, list[str]], None] = lambda job, findings: None,
) -> str:
    """Run one job; the finding and its folder, or empty."""
    kinds = (*KINDS, *CABLES) if cables else KINDS
    script = make_script(random.Random(seed), seed, store, kinds)
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{script.store.value}-{seed}-"))
    with surroundings(script.store, script.nodes, cables) as (network, etcd):
        job = Job(folder, script, network, etcd, preload)
        try:
            findings = job.run()
        finally:
            job.end()
    report(job, findings)
    if findings:
        return "\n  ".join([f"seed {seed}: {'; '.join(findings)}", *job.describe().splitlines(),
                            f"see {folder}"])  # fmt: skip
    shutil.rmtree(folder)
    return ""


def main(argv: Sequence[str] | None = None) -> int:
    """Run jobs; the exit code is 1 if there is a finding."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", choices=[one.value for one in STORES])
    parser.add_argument("--runs", type=int, default=10, help="number of runs (10)")
    parser.add_argument("--seed", type=int, default=1, help="of the first run (1)")
    parser.add_argument("--at-once", type=int, default=2, help="runs at the same time (2)")
    parser.add_argument("--cables", action="store_true", help="cut the cables of namespaces")
    parser.add_argument("--preload", default="", metavar="MODULE", help="fork the workers")
    parser.add_argument("--verbose", action="store_true", help="print what happens in each run")
    args = parser.parse_args(argv)
    store = StoreKind(args.store) if args.store else None
    began = time.monotonic()
    findings = 0

    def report(job: Job, found: list[str]) -> None:
        if args.verbose:
            print(job.describe(), flush=True)

    with ThreadPoolExecutor(args.at_once) as pool:
        seeds = range(args.seed, args.seed + args.runs)
        work = partial(run, store, cables=args.cables, preload=args.preload, report=report)
        for found in pool.map(work, seeds):
            findings += bool(found)
            if found:
                print(found, flush=True)
    print(f"{args.runs} runs in {time.monotonic() - began:.0f} s, {findings} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
