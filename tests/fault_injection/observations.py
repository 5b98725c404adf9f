"""What can be observed of a job of real agents, as the record that the simulator's checks read.

The workers note in a ledger what they have done, a plugin in the agents what only these know, and
the agents write their events. Times are those of this machine's clock.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import time
import urllib.request
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from plaunch_testing.simulation.record import (
    AgentRecord,
    FirstFailure,
    InjectedCause,
    NodeEvent,
    OutputRecord,
    RoundRecord,
    StartedWorker,
    VerdictRecord,
)

from helpers.processes import is_gone

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

HERE = Path(__file__).parent
WORKER = HERE / "worker.py"
# Seconds around a fault in which another one may hide it: it may come while workers are stopped.
HIDES = 5.0
BUSY = 3.0  # processes that want to run, for each core
_LINE = re.compile(r"(?:\[([^]]+)\] )?L (\d+) (\d+) (\d+) (\d+) (x*|last)")
_CUT = re.compile(r"(?:\[[^]]+\] )?(L( \d*){0,4}( x*| l?a?s?)?)?")
Worker = tuple[int, int, int]  # round, rank, process id
Entry = dict[str, Any]


def load_factor() -> float:
    """Return by how much a busy machine is slower than an idle one."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@dataclass(frozen=True)
class WorkerSettings:
    """What the workers of a job do.

    Args:
        lines: the number of lines before the last one.
        block: how many of them a worker writes at a time.
        stream: the descriptor that they are written to.
        work: seconds of work.
        save: seconds that rank 0 saves after that; None if it does not.
        meets: whether the ranks wait for each other at the beginning and at the end.
        is_graceful: whether they end with 0 after a stop signal.
        stop_time: seconds that they need to end after a stop signal; None to leave that to the
            system.
        node: the name of their node.
        preload: the module that forked workers have at their start.
    """

    lines: int
    block: int = 500
    stream: int = 1
    work: float = 0.1
    save: float | None = None
    meets: bool = False
    is_graceful: bool = False
    stop_time: float | None = None
    node: str = ""
    preload: str = "none"

    def to_argument(self) -> str:
        """Return the argument of a worker."""
        return json.dumps(asdict(self))


class JsonLines:
    """Reads a file of JSON lines that others append to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: list[Entry] = []
        self._rest = b""
        self._position = 0

    def read(self) -> list[Entry]:
        """Return all entries so far."""
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._position)
            data = file.read()
            self._position += len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._entries += map(json.loads, lines)
        return self._entries


class Observations:
    """What is known of the workers and agents of one job.

    Args:
        folder: the working folder of the agents.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ledger = JsonLines(folder / "ledger")
        self._records = JsonLines(folder / "records")
        self._gone: dict[int, float] = {}  # when a worker was seen to be gone
        self._kills: list[tuple[Entry, float, int]] = []

    def ledger(self) -> list[Entry]:
        """What workers have noted, in order."""
        return self._ledger.read()

    def records(self) -> list[Entry]:
        """What the plugin in the agents has noted, in order."""
        return self._records.read()

    def note_kill(self, entry: Entry, code: int) -> None:
        """Note that a test kills the worker of an entry, which ends with `code`."""
        self._kills.append((entry, time.time(), code))

    def look(self) -> list[Entry]:
        """Note which workers are gone; return the entries of those that run."""
        running = []
        for entry in self.ledger():
            pid = entry["pid"]
            if entry["event"] == "start" and pid not in self._gone:
                if is_gone(pid):
                    self._gone[pid] = time.time()
                else:
                    running.append(entry)
        return running

    def events(self) -> dict[int, list[Entry]]:
        """The events of each agent, by its process id."""
        found: dict[int, list[Entry]] = defaultdict(list)
        for path in sorted((self._folder / "logs").glob("*/events/*.jsonl")):
            for line in path.read_text().splitlines():
                event = json.loads(line)
                found[event["metadata"]["agent_pid"]].append(event)
        return found

    def injected(self) -> list[Entry]:
        """The faults that launchers have injected into workers, by their logs."""
        logs = (self._folder / "logs").glob("*/chaos-*.jsonl")
        lines = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
        return [line for line in lines if line.get("is_done") and line["rank"] is not None]

    # --- rounds -----------------------------------------------------------------------------------

    def rounds(
        self, names: Mapping[int, tuple[str, str]], others: Sequence[float] = ()
    ) -> list[RoundRecord]:
        """Return the rounds in which workers have started, in order.

        Args:
            names: the name and the host of each agent, by its process id.
            others: when something else has happened that may have stopped workers.
        """
        self.look()
        incarnations = {
            (entry["agent"], entry["round"]): entry["incarnation"] or ""
            for entry in self.records()
            if entry["event"] == "round"
        }
        entries: dict[tuple[str, int, int], list[Entry]] = defaultdict(list)
        for entry in self.ledger():
            incarnation = incarnations.get((entry["agent"], entry["round"]), "")
            entries[incarnation, entry["round"], entry["attempt"]].append(entry)
        return [self._round(key, mine, names, others) for key, mine in entries.items()]

    def _round(
        self,
        key: tuple[str, int, int],
        entries: Sequence[Entry],
        names: Mapping[int, tuple[str, str]],
        others: Sequence[float],
    ) -> RoundRecord:
        starts = []
        ends: dict[str, float] = {}
        running: set[str] = set()
        for entry in (one for one in entries if one["event"] == "start"):
            name, host = names.get(entry["agent"], (str(entry["agent"]), ""))
            starts.append(
                StartedWorker(
                    entry["rank"], entry["local_rank"], entry["world"], entry["master"], name,
                    host, entry["at"],
                )
            )  # fmt: skip
            if entry["pid"] in self._gone:
                ends[name] = max(ends.get(name, 0.0), self._gone[entry["pid"]])
            else:
                running.add(name)
        world = entries[0]["world"]
        done = {one["rank"]: one["at"] for one in entries if one["event"] == "last"}
        is_complete = {one.rank for one in starts} == set(range(world))
        is_finished = set(done) == set(range(world))
        return RoundRecord(
            *key,
            starts,
            {name: at for name, at in ends.items() if name not in running},
            max(one.at for one in starts) if is_complete else None,
            max(done.values()) if is_finished else None,
            is_finished,
            causes=self._causes(key, entries, names, others),
        )

    def _causes(
        self,
        key: tuple[str, int, int],
        entries: Sequence[Entry],
        names: Mapping[int, tuple[str, str]],
        others: Sequence[float],
    ) -> list[InjectedCause]:
        agents = {one["agent"] for one in entries}
        ended = {one["pid"] for one in entries if one["event"] == "last"}
        found = [
            (one["at"], one["agent"], one["rank"], one["code"])
            for one in entries
            if one["event"] == "exit" and one["code"] != 0
        ]
        found += [
            (one["timestamp"], one["agent_pid"], one["rank"], _signal_of(one))
            for one in self.injected()
            if one["agent_pid"] in agents
            and (one["round"], one["attempt"]) == key[1:]
            and one["pid"] not in ended
        ]
        found += [
            (one["at"], one["agent"], one["rank"], 116)
            for one in self.records()
            if one["event"] == "hang"
            and one["agent"] in agents
            and (one["round"], one["attempt"]) == key[1:]
        ]
        found += [
            (at, one["agent"], one["rank"], code)
            for one, at, code in self._kills
            if one["pid"] not in ended and any(one["pid"] == each["pid"] for each in entries)
        ]
        hiding = [one["at"] for one in entries if one["event"] == "stopped"]
        hiding += [*others, *(one[0] for one in found)]
        causes = []
        for at, agent, rank, code in sorted(found):
            is_hidden = any(at - HIDES < other <= at and other != at for other in hiding)
            _, host = names.get(agent, ("", ""))
            causes.append(InjectedCause(at, at, host, rank, code, not is_hidden))
        return causes

    # --- agents -----------------------------------------------------------------------------------

    def complete(self, agent: AgentRecord, pid: int, rounds: Iterable[RoundRecord]) -> None:
        """Fill in what an agent has said."""
        mine = [entry for entry in self.records() if entry["agent"] == pid]
        known = [one for one in mine if one["event"] == "round"]
        events = self.events().get(pid, [])
        agent.events = _to_events(events, known)
        agent.is_asked_to_end |= any(_asks_to_end(event) for event in events)
        begun = (e["timestamp"] for e in events if e["name"] == "plaunch.rendezvous.begun")
        agent.joined_at = next(begun, None)
        agent.outcome = next((e.told for e in agent.events if e.name == "AgentFinished"), "")
        agent.has_failed = agent.outcome == "failed"
        if known:
            agent.incarnation, agent.last_round = known[-1]["incarnation"], known[-1]["round"]
        for end in (entry for entry in mine if entry["event"] == "end"):
            agent.incarnation = end.get("incarnation", agent.incarnation)
            agent.last_round = end.get("round", agent.last_round)
            if "verdict" in end:
                first = FirstFailure(*end["first"]) if "first" in end else None
                agent.verdict = VerdictRecord(*end["verdict"], first)
            left = [f"the threads {', '.join(end['threads'])}"] if end["threads"] else []
            # The last second of an agent is too short to end them on a machine that is very busy.
            agent.leftovers = [*left, *end["sockets"]] if end["load"] < BUSY else []
        trained = [one for one in rounds if any(w.node == agent.name for w in one.starts)]
        if trained:
            last = trained[-1]
            ranks = {worker.rank for worker in last.starts if worker.node == agent.name}
            done = {
                entry["rank"]
                for entry in self.ledger()
                if (entry["round"], entry["attempt"]) == (last.number, last.attempt)
                and entry["agent"] == pid
                and (entry["event"] == "last" or entry.get("code") == 0)
            }
            agent.is_success_sure = ranks <= done
            agent.runs_workers = agent.name not in last.ends


def _asks_to_end(event: Entry) -> bool:
    """Whether an agent has received a signal or a request by which it ends."""
    facts = event["metadata"]
    if event["name"] == "plaunch.signal.received":
        return bool(facts["action"] == "stop")
    return event["name"] == "plaunch.request.received" and facts["kind"] in ("stop", "leave")


def _signal_of(line: Entry) -> int:
    match = re.search(r"signal=SIG(\w+)", line["fault"])
    return -{"SEGV": 11, "ABRT": 6}.get(match.group(1) if match else "", 9)


def _to_events(events: Iterable[Entry], rounds: Sequence[Entry]) -> list[NodeEvent]:
    """Convert the events of an agent to those that the checks know.

    Args:
        events: as in the file of an agent.
        rounds: what the plugin has noted of the same rounds.
    """
    incarnations = [str(entry["incarnation"] or "") for entry in rounds]
    found: list[NodeEvent] = []
    incarnation, reason, formed = "", "", 0
    for event in events:
        facts, name = event["metadata"], event["name"].removeprefix("plaunch.")
        told, lost, world, known = "", "", "", ""
        if name == "restart":
            reason = f"{facts['reason']}; {facts['decision']}"
        elif name == "rendezvous.completed":
            if formed < len(incarnations):
                incarnation = incarnations[formed]
            formed += 1
            known, told, reason = "AfterRendezvous", reason, ""
            master = f"{facts['master_addr']}:{facts['master_port']}"
            world = f"{facts['group_world_size']} nodes, rank 0 at {master}"
        elif name == "membership.changed":
            known = "MembershipChanged"
            if facts["kind"] == "lost":
                told, lost = facts["reason"], facts["node"]
        elif name == "launcher.finished":
            known, told = "AgentFinished", facts["outcome"]
        elif name == "workers.started":
            known = "WorkersStarted"
        if known:
            found.append(
                NodeEvent(
                    known, incarnation, facts["round"], facts["attempt"], event["timestamp"],
                    told, lost, world,
                )
            )  # fmt: skip
    return found


# --- output ---------------------------------------------------------------------------------------


class DeliveredLines(NamedTuple):
    """The lines of workers in an output.

    Args:
        counts: how many of each worker's lines have arrived, in their order.
        nodes: the name that the command has put in front of them.
        problems: lines that are wrong, by worker; those of none under None.
    """

    counts: dict[Worker, int]
    nodes: dict[Worker, str]
    problems: dict[Worker | None, str]


def read_lines(lines: Iterable[str], *, is_mixed: bool, may_be_cut: bool) -> DeliveredLines:
    """Find the lines of workers.

    Args:
        lines: of an output.
        is_mixed: whether others have written to it, too.
        may_be_cut: whether a fault may have cut a line.
    """
    counts: dict[Worker, int] = defaultdict(int)
    nodes: dict[Worker, str] = {}
    problems: dict[Worker | None, str] = {}
    for line in lines:
        match = _LINE.fullmatch(line)
        if match is None:
            if not is_mixed and not (may_be_cut and _CUT.fullmatch(line)):
                problems.setdefault(None, f"a line that no worker has written: {line[:200]!r}")
            continue
        node, *numbers, _ = match.groups()
        round_, rank, pid, index = map(int, numbers)
        worker = round_, rank, pid
        nodes[worker] = node or ""
        if index != counts[worker]:
            problems.setdefault(worker, f"line {index} comes after {counts[worker]} lines")
        counts[worker] = index + 1
    return DeliveredLines(counts, nodes, problems)


def written_lines(ledger: Iterable[Entry]) -> dict[Worker, tuple[int, int]]:
    """Return how many lines each worker has written, and the process id of its agent."""
    wrote: dict[Worker, tuple[int, int]] = {}
    for entry in ledger:
        worker = entry["round"], entry["rank"], entry["pid"]
        if entry["event"] == "wrote":
            wrote[worker] = entry["lines"], entry["agent"]
    return wrote


def output_records(
    delivered: DeliveredLines,
    wrote: Mapping[Worker, tuple[int, int]],
    cut_agents: Iterable[int],
    cut_nodes: Iterable[str] = (),
) -> list[OutputRecord]:
    """Return what has been written, and what has arrived of that.

    Args:
        delivered: what has arrived.
        wrote: what was written.
        cut_agents: the process ids of agents whose output may be cut.
        cut_nodes: names of nodes whose output may be cut; `*` for all.
    """
    agents, names = set(cut_agents), set(cut_nodes)
    records = []
    for worker, (count, agent) in wrote.items():
        node = delivered.nodes.get(worker)
        may_be_cut = agent in agents or "*" in names or bool(names and node in (None, *names))
        name = f"rank {worker[1]} of round {worker[0]} (pid {worker[2]})"
        problem = delivered.problems.get(worker, "")
        records.append(OutputRecord(name, count, delivered.counts[worker], may_be_cut, problem))
    if None in delivered.problems:
        records.append(OutputRecord("the output", 0, 0, problem=delivered.problems[None]))
    return records


def read_etcd_keys(endpoint: str) -> list[str]:
    """Return all keys in an etcd server; none if it does not answer."""
    everything = base64.b64encode(b"\0").decode()
    request = {"key": everything, "range_end": everything, "keys_only": True}
    try:
        with urllib.request.urlopen(
            f"http://{endpoint}/v3/kv/range", json.dumps(request).encode(), timeout=10
        ) as answer:
            found = json.load(answer).get("kvs", [])
    except OSError:
        return []
    return [base64.b64decode(each["key"]).decode(errors="replace") for each in found]


def processes_with(mark: bytes) -> dict[int, str]:
    """Return the processes with a text in their environment or command line."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            title = (path / "cmdline").read_bytes()
            if mark in title or mark in (path / "environ").read_bytes():
                found[int(path.name)] = os.fsdecode(title).rstrip("\0").replace("\0", " ")[:200]
    return {pid: title for pid, title in found.items() if pid != os.getpid() and not is_gone(pid)}
