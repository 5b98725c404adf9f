"""Jobs of `plaunch --on=ENGINE` with random faults in every phase, judged as simulated jobs are.

    python tests/fault_injection/engine_jobs.py [--engine local|ssh] [--runs N] [--seed N]
                                      [--jobs N]

Each run is a job whose workers write numbered lines, wait, and write a last line; rank 0 is the
last one, as if it saved a checkpoint. The seed decides the size of the job and the faults: signals
for the command, its suspension, agents, workers and connections that are killed or suspended, a
reader of the output that pauses, and a busy machine. A fault happens some milliseconds after an
event: the start of the command, of all workers, of the save, or the last line of the last worker.

Workers note in a ledger what they have done. `observations.py` makes a record of that, of what the
agents say, and of what the command has written and returned; the checks of the simulator judge it.
They know nothing of how plaunch decides. A finding is printed with its seed, and the folder of its
run is kept.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
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
    read_lines,
    written_lines,
)
from plaunch_testing.simulation import FaultKind
from plaunch_testing.simulation.checks import find_faults
from plaunch_testing.simulation.record import AgentRecord, FaultRecord, RunRecord

from helpers.engine_clusters import LocalNodes, SshNodes
from helpers.processes import parent_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from helpers.engine_commands import EngineCommand

BOUND = 180.0  # seconds for the end of a job after its last fault, on a busy machine
LEFT_BOUND = 60.0  # seconds until nothing is left of a job
LOOK = 0.01  # seconds between two checks of the ledger
SSH_HOSTS = 6
SILENCE = 5.0  # seconds without a sign of the command after which agents end, in jobs over ssh
CONF = "last_call_timeout=1,keep_alive_interval=0.4,keep_alive_max_attempt=8,join_timeout=60"
MISSING = re.compile(r"output .*(is|may be) missing")

LONG = "suspend command for long"
# What the kinds are in a record; signals for the command have their own.
RECORDED = {
    "kill agent": FaultKind.KILL_AGENT, "kill worker": FaultKind.KILLED,
    "stop agent": FaultKind.PAUSE, "pause reader": FaultKind.READER_PAUSE,
    "suspend command": FaultKind.COMMAND_PAUSE, LONG: FaultKind.COMMAND_PAUSE,
    "kill connection": FaultKind.CONNECTION_LOSS, "command SIGKILL": FaultKind.COMMAND_KILLED,
}  # fmt: skip


@dataclass
class Fault:
    """One fault of a run.

    Args:
        kind: what happens.
        phase: the event after which it happens.
        delay: seconds from the event.
        length: seconds that a suspension or pause takes.
        at: when it was injected, in seconds since the epoch; None: it was not.
        value: the signal, for a process that it has ended.
        agent: the process id of the agent that it has hit; 0 for none.
        hit: ids of the agents whose output may be cut.
        nodes: names of the nodes whose output may be cut; `*` for all.
    """

    kind: str
    phase: str
    delay: float
    length: float = 0.0
    at: float | None = None
    value: int = 0
    agent: int = 0
    hit: set[int] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        when = " (not injected)" if self.at is None else ""
        return f"{self.kind} {self.delay:g} s after {self.phase}{when}"

    def to_record(self) -> FaultRecord:
        """Return it as the checks know it."""
        kind = RECORDED.get(self.kind, FaultKind.COMMAND_SIGNAL)
        host = f"agent{self.agent}" if self.agent else ""
        return FaultRecord(kind, host, self.at or 0.0, self.length, value=self.value)


class Job:
    """One job of an engine in its own folder.

    Args:
        folder: for its files.
        cluster: its nodes.
        chance: makes all random choices.
    """

    def __init__(self, folder: Path, cluster: LocalNodes, chance: random.Random) -> None:
        self.folder, self.cluster, self.chance = folder, cluster, chance
        self.nodes = chance.randint(2, 3)
        self.workers = chance.randint(1, 2)  # of each node
        self.spares = chance.choice((0, 0, 1))
        self.least = chance.choice((self.nodes, self.nodes, 1))
        self.restarts = chance.randint(0, 2)
        self.lines = chance.choice((0, 10, 1000, 20_000))
        self.block = chance.choice((7, 500))
        self.work = chance.choice((0.1, 0.3, 1.0))
        self.save = chance.choice((0.0, 0.5, 1.5))
        self.is_graceful = chance.random() < 0.3
        self.load = chance.choice((0, 0, 0, 4))
        self.faults = [self._random_fault() for _ in range(chance.choice((0, 1, 1, 1, 1, 1, 2, 3)))]
        if any(f.kind == LONG and f.phase in ("begin", "all workers") for f in self.faults):
            self.work = 2 * SILENCE  # or the job is over before agents miss the command
        self.story: list[str] = []
        self._began = time.time()
        self._reading = threading.Event()
        self._reading.set()
        self.observations = Observations(folder)
        self.record: RunRecord | None = None
        self.err = ""

    def _random_fault(self) -> Fault:
        chance = self.chance
        kinds = [
            *("kill agent", "kill agent", "kill worker", "stop agent", "pause reader"),
            *("command SIGINT", "command SIGTERM", "command SIGHUP", "command thrice"),
            *("command SIGKILL", "suspend command", LONG),
        ]
        if isinstance(self.cluster, SshNodes):
            kinds += ["kill connection", "kill connection"]
        phase = chance.choice(("begin", "all workers", "saving", "saving", "last lines"))
        scale = {"begin": 3.0, "last lines": 0.2}.get(phase, 1.0)
        delay = scale * chance.choice((0.0, 0.01, 0.05, 0.1, 0.2, 0.5))
        fault = Fault(chance.choice(kinds), phase, delay)
        if fault.kind in ("stop agent", "suspend command", "pause reader"):
            fault.length = chance.choice((0.1, 0.5, 1.0))
        elif fault.kind == LONG:
            fault.length = 3 * SILENCE
        return fault

    # --- observations -----------------------------------------------------------------------------

    def _has_happened(self, phase: str) -> bool:
        if phase == "begin":
            return True
        entries = self.observations.ledger()
        last = max((entry["round"] for entry in entries), default=-1)
        entries = [entry for entry in entries if entry["round"] == last]
        if phase == "saving":
            return any(entry["event"] == "saving" for entry in entries)
        event = "start" if phase == "all workers" else "last"
        ranks = {entry["rank"] for entry in entries if entry["event"] == event}
        return bool(entries) and len(ranks) == entries[-1]["world"]

    def _note(self, text: str) -> None:
        self.story.append(f"{time.time() - self._began:7.2f} s  {text}")

    # --- the run ----------------------------------------------------------------------------------

    def run(self) -> list[str]:
        """Run the job; return what is wrong with it."""
        settings = WorkerSettings(
            self.lines, self.block, work=self.work, save=self.save, is_graceful=self.is_graceful
        )
        read, write = os.pipe()
        words = [
            f"--nnodes={self.least}:{self.nodes}" if self.least < self.nodes
            else f"--nnodes={self.nodes}",
            f"--spares={self.spares}",
            f"--nproc-per-node={self.workers}",
            f"--max-restarts={self.restarts}",
            f"--rdzv-conf={CONF}",
            "--shutdown-timeout=5",
            "--failure-bundles=none",
            f"--log-dir={self.folder / 'logs'}",
            "--event-log-handler=jsonl",
            "--plugins=fault_injection.node_recorder",
            "--pass-env=PYTHONPATH",
            *([f"--silence-limit={SILENCE:g}"] if isinstance(self.cluster, SshNodes) else []),
            "--no-python",
            *(sys.executable, "-S", "-E", str(WORKER), settings.to_argument()),
        ]  # fmt: skip
        busy = [_busy() for _ in range(self.load)]
        self._note(f"{' '.join(words)}, load {self.load}")
        self._began = time.time()
        command = self.cluster.launch(
            self.folder, *words, nodes=self.nodes + self.spares, further=1, stdout=write,
            env={"PYTHONPATH": str(Path(__file__).resolve().parents[1])},
        )  # fmt: skip
        os.close(write)
        reader = _Reader(read, self._reading)
        code: int | None = None
        try:
            pending = list(self.faults)
            while pending and command.process.poll() is None:
                due = next((f for f in pending if self._has_happened(f.phase)), None)
                if due is None:
                    self.observations.look()
                    time.sleep(LOOK)
                    continue
                pending.remove(due)
                time.sleep(due.delay)
                self._inject(due, command)
            deadline = time.monotonic() + BOUND * load_factor()
            while (code := command.process.poll()) is None and time.monotonic() < deadline:
                self.observations.look()
                time.sleep(5 * LOOK)
            ended_at = time.time()
            self._note(f"the command ends with {code}")
            left = self._wait_for_nothing(command)
        finally:
            for process in busy:
                process.kill()
                process.wait()
            command.process.kill()
            command.process.wait()
            reader.join()
            for pid in command.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.code, self.err, self.out = code, command.err, reader.lines()
        self.record = self._to_record(code, ended_at, left)
        return [*find_faults(self.record), *self._find_avoidable_end()]

    def injected(self) -> list[Fault]:
        """Return the faults that have happened."""
        return [fault for fault in self.faults if fault.at is not None]

    def _to_record(
        self, code: int | None, ended_at: float, left: Mapping[int, list[str]]
    ) -> RunRecord:
        seen, injected = self.observations, self.injected()
        events = seen.events()
        pids = list(dict.fromkeys([*events, *(entry["agent"] for entry in seen.ledger())]))
        names = {pid: (f"agent{pid}", f"agent{pid}") for pid in pids}
        # Those of workers are known more exactly.
        others = [fault.at or 0.0 for fault in injected if fault.kind != "kill worker"]
        rounds = seen.rounds(names, others)
        command = AgentRecord(
            "the command",
            "command",
            self._began,
            ended_at,
            None if code is None else _positive(code),
        )
        command.is_success_sure = bool(rounds) and rounds[-1].has_succeeded
        command.has_failed = True  # it reports failures of agents
        agents = []
        for pid in pids:
            agent = AgentRecord(*names[pid], self._began, ended_at)
            seen.complete(agent, pid, rounds)
            ends = [e for e in events.get(pid, ()) if e["name"] == "plaunch.launcher.finished"]
            # A spare that a signal ends has no workers whose success could be its result.
            has_trained = any(worker.node == agent.name for r in rounds for worker in r.starts)
            agent.ends_by_itself = agent.is_asked_to_end and not has_trained
            if ends:
                agent.exit_code = _positive(ends[-1]["metadata"]["exit_code"])
                agent.ended_at = ends[-1]["timestamp"]
            agents.append(agent)
        is_killed = code == -signal.SIGKILL
        delivered = read_lines(
            self.out[:-1] if is_killed else self.out, is_mixed=False, may_be_cut=bool(injected)
        )
        outputs = output_records(
            delivered,
            written_lines(seen.ledger()),
            {pid for fault in injected for pid in fault.hit},
            {name for fault in injected for name in fault.nodes} | ({"*"} if is_killed else set()),
        )
        has_traceback = re.search(r'internal error|File ".*/plaunch(_\w+)?/', self.err)
        return RunRecord(
            self.least,
            self.nodes,
            self.workers,
            self.restarts,
            latency=0.01,
            faults=[fault.to_record() for fault in injected],
            rounds=rounds,
            nodes=[command, *agents],
            errors=[f"the command has written: {self.err[-500:]}"] if has_traceback else [],
            unfinished=["the command"] if code is None else [],
            leftovers=[f"process {pid} ({' '.join(title)})" for pid, title in left.items()],
            outputs=outputs,
            is_loss_shown=None if is_killed else bool(MISSING.search(self.err)),
            precision=load_factor(),
        )

    def _find_avoidable_end(self) -> Iterator[str]:
        """The job has ended, although a restart was left for its only fault."""
        serious = [one for one in self.injected() if one.kind not in ("stop agent", "pause reader")]
        if (
            self.code
            and len(serious) == 1
            and self.restarts > 0
            and serious[0].phase == "all workers"
            and serious[0].kind in ("kill agent", "kill worker")
        ):
            yield f"restarts: exit code {self.code}, although one was left for {serious[0]}"

    def _wait_for_nothing(self, command: EngineCommand) -> dict[int, list[str]]:
        deadline = time.monotonic() + LEFT_BOUND
        while (left := command.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    def _inject(self, fault: Fault, command: EngineCommand) -> None:
        name, _, rest = fault.kind.partition(" ")
        if command.process.poll() is not None:
            return
        fault.at = time.time()
        done = getattr(self, f"_{name}")(fault, rest, command)
        if done:
            self._note(f"{fault}: {done}")
        else:
            fault.at = None  # there was nothing that it could happen to

    def _kill(self, fault: Fault, what: str, command: EngineCommand) -> str:
        if what == "worker":
            alive = self.observations.look()
            if not alive:
                return ""
            entry = self.chance.choice(alive)
            fault.value, fault.agent = -signal.SIGKILL, entry["agent"]
            self.observations.note_kill(entry, -signal.SIGKILL)
            return _send(entry["pid"], signal.SIGKILL) and f"rank {entry['rank']}"
        if what == "connection":
            parent = _pid_of(command)
            clients = []
            for client, title in command.processes().items():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                    if os.path.basename(title[0]) == "ssh" and parent_of(client) == parent:
                        clients.append(client)
            if not clients:
                return ""
            fault.nodes = {"*"}
            return _send(self.chance.choice(clients), signal.SIGKILL)
        agents = command.agents()
        if not agents:
            return ""
        pid = self.chance.choice(agents)
        fault.agent, fault.hit = pid, {pid}
        return _send(pid, signal.SIGKILL)

    def _stop(self, fault: Fault, what: str, command: EngineCommand) -> str:
        agents = command.agents()
        pid = self.chance.choice(agents) if agents else 0
        if not pid or not _send(pid, signal.SIGSTOP):
            return ""
        fault.agent = pid
        time.sleep(fault.length)
        return _send(pid, signal.SIGCONT)

    def _command(self, fault: Fault, what: str, command: EngineCommand) -> str:
        pid = _pid_of(command)
        if not pid:
            return ""
        if what == "thrice":
            fault.value, fault.nodes = signal.SIGTERM, {"*"}
            for _ in range(3):
                _send(pid, signal.SIGTERM)
                time.sleep(0.02)
            return "SIGTERM three times"
        signum = signal.Signals[what]
        fault.value = signum
        return _send(pid, signum)

    def _suspend(self, fault: Fault, what: str, command: EngineCommand) -> str:
        if fault.kind == LONG:
            fault.nodes = {"*"}
        pid = _pid_of(command)
        if not pid or not _send(pid, signal.SIGSTOP):
            return ""
        time.sleep(fault.length)
        return _send(pid, signal.SIGCONT)

    def _pause(self, fault: Fault, what: str, command: EngineCommand) -> str:
        self._reading.clear()
        time.sleep(fault.length)
        self._reading.set()
        return f"for {fault.length:g} s"


class _Reader:
    """Reads the output of a command, unless it is to pause."""

    def __init__(self, fd: int, may_read: threading.Event) -> None:
        self._fd, self._may_read = fd, may_read
        self._data = bytearray()
        self._is_over = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            self._may_read.wait()
            if select.select([self._fd], [], [], 0.2)[0]:
                data = os.read(self._fd, 65536)
                if not data:
                    return
                self._data += data
            elif self._is_over:  # a process that is left has the other end
                return

    def join(self) -> None:
        self._may_read.set()
        self._is_over = True
        self._thread.join()
        os.close(self._fd)

    def lines(self) -> list[str]:
        return self._data.decode(errors="replace").splitlines()


def _pid_of(command: EngineCommand) -> int:
    """Return the process of the command, which a cluster may have started; 0 if there is none."""
    found = command.find("plaunch")
    return found[0] if len(found) == 1 else 0


def _send(pid: int, signum: int) -> str:
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return ""
    return f"{signal.Signals(signum).name} for {pid}"


def _positive(code: int) -> int:
    """Return the exit code that a shell shows."""
    return 128 - code if code < 0 else code


def _busy() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-S", "-E", "-c", "while True: pass"])


def run(
    cluster: LocalNodes,
    seed: int,
    report: Callable[[Job, list[str]], None] = lambda job, findings: None,
) -> str:
    """Run one job; return what is wrong with it and its story, or "".

    The folder of a run with a finding is kept.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"engine-chaos-{seed}-"))
    job = Job(folder, cluster, random.Random(seed))
    found = job.run()
    report(job, found)
    if not found:
        shutil.rmtree(folder)
        return ""
    (folder / "out").write_text("\n".join(job.out))
    story = "\n  ".join((*job.story, f"see {folder}", *job.err.splitlines()[-12:]))
    return f"seed {seed}: {'; '.join(found)}\n  {story}"


CLUSTERS = {"local": LocalNodes, "ssh": lambda: SshNodes(SSH_HOSTS)}


def main(arguments: Iterable[str] | None = None) -> int:
    """Run many jobs; return 1 if there are findings."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engine", choices=sorted(CLUSTERS), default="local")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="number of runs at a time")
    args = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also in the background of a script
    cluster = CLUSTERS[args.engine]()
    codes: Counter[tuple[str, int | None]] = Counter()
    done = findings = 0

    def report(job: Job, found: list[str]) -> None:
        nonlocal done
        done += 1
        kinds = sorted({fault.kind for fault in job.injected()}) or ["no fault"]
        codes[", ".join(kinds) if len(kinds) == 1 else "several faults", job.code] += 1
        if sys.stderr.isatty() or done % 20 == 0:
            print(f"\r{done} of {args.runs} runs, {findings} findings ", end="", file=sys.stderr)

    try:
        with ThreadPoolExecutor(args.jobs) as pool:
            seeds = range(args.seed, args.seed + args.runs)
            for found in pool.map(lambda seed: run(cluster, seed, report), seeds):
                if found:
                    findings += 1
                    print(f"\n{found}", flush=True)
    finally:
        cluster.close()
    print(f"\n{args.runs} runs of {args.engine}, {findings} findings")
    for (kinds, code), count in sorted(codes.items(), key=str):
        print(f"  {count:4}  {kinds}: exit code {code}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
