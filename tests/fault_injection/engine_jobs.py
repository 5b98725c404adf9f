"""Jobs of `plaunch --on=ENGINE` with random faults in every phase, and a judge of how they end.

    python tests/fault_injection/engine_jobs.py [--engine local|ssh] [--runs N] [--seed N]
                                      [--jobs N]

Each run is a job whose workers write numbered lines, wait, and write a last line; rank 0 is the
last one, as if it saved a checkpoint. The seed decides the size of the job and the faults: signals
for the command, its suspension, agents, workers and connections that are killed or suspended, a
reader of the output that pauses, and a busy machine. A fault happens some milliseconds after an
event: the start of the command, of all workers, of the save, or the last line of the last worker.

Workers write to a ledger what they have done. `judge` compares it with what the command has
written and returned. It knows nothing of how plaunch decides. A finding is printed with its seed,
and the folder of its run is kept.
"""

from __future__ import annotations

import argparse
import contextlib
import json
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
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from helpers.engine_clusters import LocalNodes, SshNodes
from helpers.processes import is_gone, parent_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from helpers.engine_commands import EngineCommand

BOUND = 180.0  # seconds for the end of a job after its last fault, on a busy machine
LEFT_BOUND = 60.0  # seconds until nothing is left of a job
LOOK = 0.01  # seconds between two checks of the ledger
SSH_HOSTS = 6
SILENCE = 5.0  # seconds without a sign of the command after which agents end, in jobs over ssh
CONF = "last_call_timeout=1,keep_alive_interval=0.4,keep_alive_max_attempt=8,join_timeout=60"
MISSING = re.compile(r"output .*(is|may be) missing")

WORKER = """\
import json, os, signal, sys, time
lines, block, work, save, graceful = json.loads(sys.argv[1])
rank, round_ = int(os.environ["RANK"]), int(os.environ["PLAUNCH_ROUND"])
me = {"rank": rank, "round": round_, "pid": os.getpid(), "agent": os.getppid(),
      "world": int(os.environ["WORLD_SIZE"]),
      "attempt": int(os.environ["TORCHELASTIC_RESTART_COUNT"])}
fd = os.open("ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def note(event, **facts):
    os.write(fd, json.dumps({**me, "event": event, **facts}).encode() + b"\\n")
def write(text):
    # Workers of a node share a pipe: only writes of up to PIPE_BUF bytes are never interleaved.
    rest = text.encode()
    while rest:
        size = rest.rfind(b"\\n", 0, 4096) + 1
        os.write(1, rest[:size])
        rest = rest[size:]
def stop(signum, frame):
    note("stopped")
    os._exit(0)
if graceful:
    signal.signal(signal.SIGTERM, stop)
note("start")
for first in range(0, lines, block):
    last = min(first + block, lines)
    write("".join(f"L {round_} {rank} {os.getpid()} {n} {'x' * (n % 80)}\\n"
                  for n in range(first, last)))
    note("wrote", lines=last)
time.sleep(work)
if rank == 0:
    note("saving")
    time.sleep(save)
write(f"L {round_} {rank} {os.getpid()} {lines} last\\n")
note("wrote", lines=lines + 1)
note("last")
"""

# The kinds of faults, and the exit codes of a job that each can explain.
_LOSS = (111, 113)
LONG = "suspend command for long"


@dataclass
class Fault:
    """One fault of a run.

    Args:
        kind: what happens.
        phase: the event after which it happens.
        delay: seconds from the event.
        length: seconds that a suspension or pause takes.
        at: when it was injected, in seconds from the start of the job; None: it was not.
        codes: the exit codes that it explains.
        hit: ids of the agents whose output may be cut.
        nodes: names of the nodes whose output may be cut; `*` for all.
    """

    kind: str
    phase: str
    delay: float
    length: float = 0.0
    at: float | None = None
    codes: tuple[int, ...] = ()
    hit: set[int] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        when = "not injected" if self.at is None else f"at {self.at:.2f} s"
        return f"{self.kind} {self.delay:g} s after {self.phase} ({when})"


@dataclass
class Facts:
    """What is known of a job after its end, for the judge.

    Args:
        code: the exit code of the command, negative for a signal; None if it has not ended.
        ledger: what workers have noted, in order.
        out: the lines on the standard output of the command.
        err: its standard error.
        faults: those that were planned.
        restarts: `--max-restarts`.
        lines: number of lines of each worker before its last one.
        left: processes that are left.
    """

    code: int | None
    ledger: list[dict[str, Any]]
    out: list[str]
    err: str
    faults: list[Fault]
    restarts: int
    lines: int
    left: dict[int, list[str]] = field(default_factory=dict)

    def injected(self) -> list[Fault]:
        return [fault for fault in self.faults if fault.at is not None]


_LINE = re.compile(r"(?:\[([^]]+)\] )?L (\d+) (\d+) (\d+) (\d+) (x*|last)")
Worker = tuple[int, int, int]  # round, rank, process id


def judge(facts: Facts) -> list[str]:
    """Return what is wrong with the end of a job."""
    if facts.code is None:
        return ["the command has not ended"]
    found = []
    if facts.left:
        found.append(f"processes are left: {facts.left}")
    delivered, nodes, wrong = _delivered(facts)
    found += wrong
    found += _judge_output(facts, delivered, nodes)
    found += _judge_code(facts)
    if re.search(r'internal error|File ".*/plaunch(_\w+)?/', facts.err):
        found.append("the launcher has written a traceback")
    return found


def _delivered(facts: Facts) -> tuple[dict[Worker, int], dict[Worker, str], list[str]]:
    """Return the number of lines of each worker in the output, its node, and wrong lines."""
    delivered: dict[Worker, int] = defaultdict(int)
    nodes: dict[Worker, str] = {}
    wrong = []
    is_killed = facts.code == -signal.SIGKILL
    for number, line in enumerate(facts.out):
        match = _LINE.fullmatch(line)
        if match is None:
            # The last line of a worker that was killed, or of a command, may be cut.
            if not (is_killed and number == len(facts.out) - 1) and not _is_cut(facts, line):
                wrong.append(f"a line that no worker has written: {line[:200]!r}")
            continue
        node, *numbers, _ = match.groups()
        round_, rank, pid, index = map(int, numbers)
        worker = round_, rank, pid
        nodes[worker] = node or ""
        if index != delivered[worker]:
            wrong.append(f"line {index} of {worker} comes after {delivered[worker]} lines")
        delivered[worker] = index + 1
    return delivered, nodes, wrong[:5]


def _is_cut(facts: Facts, line: str) -> bool:
    """Whether a line is the beginning of one, which was cut with its agent or its worker."""
    if not facts.injected():
        return False
    text = re.sub(r"^\[[^]]+\] ", "", line)
    return bool(re.fullmatch(r"(L( \d*){0,4}( x*| l?a?s?)?)?", text))


def _judge_output(
    facts: Facts, delivered: dict[Worker, int], nodes: dict[Worker, str]
) -> list[str]:
    if facts.code == -signal.SIGKILL:
        return []
    wrote: dict[Worker, int] = defaultdict(int)
    agents: dict[Worker, int] = {}
    for entry in facts.ledger:
        worker = entry["round"], entry["rank"], entry["pid"]
        agents[worker] = entry["agent"]
        if entry["event"] == "wrote":
            wrote[worker] = entry["lines"]
    injected = facts.injected()
    hit = {pid for fault in injected for pid in fault.hit}
    cut = {name for fault in injected for name in fault.nodes}
    found = []
    is_cut = False
    for worker, count in wrote.items():
        if delivered[worker] >= count:
            continue
        is_cut = True
        node = nodes.get(worker)
        may_be_cut = agents[worker] in hit or "*" in cut or (cut and (node is None or node in cut))
        if not may_be_cut:
            found.append(
                f"{delivered[worker]} of {count} lines of {worker} on {node or 'its node'} have "
                "arrived, and its agent and its connection survived"
            )
    if is_cut and not MISSING.search(facts.err):
        found.append("output is missing, and no message says so")
    return found


def _judge_code(facts: Facts) -> list[str]:
    last = max((entry["round"] for entry in facts.ledger), default=-1)
    entries = [entry for entry in facts.ledger if entry["round"] == last]
    if facts.code == 0:
        if not entries:
            return ["0, and no worker has run"]
        world = entries[-1]["world"]
        done = {entry["rank"] for entry in entries if entry["event"] == "last"}
        return [
            f"0, and rank {rank} of round {last} has not written its last line"
            for rank in range(world)
            if rank not in done
        ]
    injected = facts.injected()
    allowed = {code for fault in injected for code in fault.codes}
    if facts.code not in allowed:
        causes = "; ".join(map(str, injected)) or "no fault"
        return [f"exit code {facts.code} is not explained by {causes}"]
    if _must_succeed(facts, injected):
        return [f"exit code {facts.code}, although a restart was left for {injected[0]}"]
    return []


def _must_succeed(facts: Facts, injected: Sequence[Fault]) -> bool:
    """Whether the one serious fault of a job is one that it can survive."""
    serious = [fault for fault in injected if fault.codes]
    return (
        len(serious) == 1
        and facts.restarts > 0
        and serious[0].phase == "all workers"
        and serious[0].kind in ("kill agent", "kill worker")
    )


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
        self._began = time.monotonic()
        self._reading = threading.Event()
        self._reading.set()
        self._ledger: list[dict[str, Any]] = []
        self._rest = b""
        self._position = 0
        (folder / "worker.py").write_text(WORKER)

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

    def ledger(self) -> list[dict[str, Any]]:
        """Return all entries so far."""
        with contextlib.suppress(FileNotFoundError), (self.folder / "ledger").open("rb") as file:
            file.seek(self._position)
            data = file.read()
            self._position += len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._ledger += map(json.loads, lines)
        return self._ledger

    def _has_happened(self, phase: str) -> bool:
        if phase == "begin":
            return True
        entries = self.ledger()
        last = max((entry["round"] for entry in entries), default=-1)
        entries = [entry for entry in entries if entry["round"] == last]
        if phase == "saving":
            return any(entry["event"] == "saving" for entry in entries)
        event = "start" if phase == "all workers" else "last"
        ranks = {entry["rank"] for entry in entries if entry["event"] == event}
        return bool(entries) and len(ranks) == entries[-1]["world"]

    def _note(self, text: str) -> None:
        self.story.append(f"{time.monotonic() - self._began:7.2f} s  {text}")

    # --- the run ----------------------------------------------------------------------------------

    def run(self) -> list[str]:
        """Run the job; return what is wrong with it."""
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
            *([f"--silence-limit={SILENCE:g}"] if isinstance(self.cluster, SshNodes) else []),
            "--no-python",
            *(sys.executable, "-S", "-E", "worker.py"),
            json.dumps([self.lines, self.block, self.work, self.save, self.is_graceful]),
        ]  # fmt: skip
        busy = [_busy() for _ in range(self.load)]
        self._note(f"{' '.join(words)}, load {self.load}")
        self._began = time.monotonic()
        command = self.cluster.launch(
            self.folder, *words, nodes=self.nodes + self.spares, further=1, stdout=write
        )
        os.close(write)
        reader = _Reader(read, self._reading)
        code: int | None = None
        try:
            pending = list(self.faults)
            while pending and command.process.poll() is None:
                due = next((f for f in pending if self._has_happened(f.phase)), None)
                if due is None:
                    time.sleep(LOOK)
                    continue
                pending.remove(due)
                time.sleep(due.delay)
                self._inject(due, command)
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = command.process.wait(BOUND)
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
        facts = Facts(
            code,
            self.ledger(),
            reader.lines(),
            command.err,
            self.faults,
            self.restarts,
            self.lines,
            left,
        )
        self.facts = facts
        return judge(facts)

    def _wait_for_nothing(self, command: EngineCommand) -> dict[int, list[str]]:
        deadline = time.monotonic() + LEFT_BOUND
        while (left := command.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    def _inject(self, fault: Fault, command: EngineCommand) -> None:
        name, _, rest = fault.kind.partition(" ")
        if command.process.poll() is not None:
            return
        fault.at = time.monotonic() - self._began
        done = getattr(self, f"_{name}")(fault, rest, command)
        if done:
            self._note(f"{fault}: {done}")
        else:
            fault.at = None  # there was nothing that it could happen to

    def _kill(self, fault: Fault, what: str, command: EngineCommand) -> str:
        if what == "worker":
            alive = [e for e in self.ledger() if e["event"] == "start" and not is_gone(e["pid"])]
            if not alive:
                return ""
            entry = self.chance.choice(alive)
            fault.codes = (128 + signal.SIGKILL,)
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
            fault.codes, fault.nodes = (*_LOSS, 255), {"*"}
            return _send(self.chance.choice(clients), signal.SIGKILL)
        agents = command.agents()
        if not agents:
            return ""
        pid = self.chance.choice(agents)
        fault.codes, fault.hit = _LOSS, {pid}
        return _send(pid, signal.SIGKILL)

    def _stop(self, fault: Fault, what: str, command: EngineCommand) -> str:
        agents = command.agents()
        pid = self.chance.choice(agents) if agents else 0
        if not pid or not _send(pid, signal.SIGSTOP):
            return ""
        time.sleep(fault.length)
        return _send(pid, signal.SIGCONT)

    def _command(self, fault: Fault, what: str, command: EngineCommand) -> str:
        pid = _pid_of(command)
        if not pid:
            return ""
        if what == "thrice":
            fault.codes, fault.nodes = (143, -15), {"*"}
            for _ in range(3):
                _send(pid, signal.SIGTERM)
                time.sleep(0.02)
            return "SIGTERM three times"
        signum = signal.Signals[what]
        fault.codes = (-signum,) if signum == signal.SIGKILL else (128 + signum, -signum)
        return _send(pid, signum)

    def _suspend(self, fault: Fault, what: str, command: EngineCommand) -> str:
        if fault.kind == LONG:
            fault.codes, fault.nodes = (117,), {"*"}
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


def _busy() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-S", "-E", "-c", "while True: pass"])


def run(
    cluster: LocalNodes,
    seed: int,
    report: Callable[[Job], None] = lambda job: None,
) -> str:
    """Run one job; return what is wrong with it and its story, or "".

    The folder of a run with a finding is kept.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"engine-chaos-{seed}-"))
    job = Job(folder, cluster, random.Random(seed))
    found = job.run()
    report(job)
    if not found:
        shutil.rmtree(folder)
        return ""
    (folder / "out").write_text("\n".join(job.facts.out))
    story = "\n  ".join((*job.story, f"see {folder}", *job.facts.err.splitlines()[-12:]))
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

    def report(job: Job) -> None:
        nonlocal done
        done += 1
        kinds = sorted({fault.kind for fault in job.facts.injected()}) or ["no fault"]
        codes[", ".join(kinds) if len(kinds) == 1 else "several faults", job.facts.code] += 1
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
