"""The summary of a launch, combined from the events of its agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.numbers import name_ranks
from plaunch.texts import join_facts
from plaunch_events import RESTART_PARTS, TIME_CATEGORIES, describe_times

from plaunch_report.facts import (
    LaunchSummary,
    NodeSummary,
    PhaseSpan,
    ReportedFailure,
    RestartSummary,
    RoundSummary,
    TimelineMark,
    WorkerLife,
)
from plaunch_report.launches import NOTABLE_SKEW, align

if TYPE_CHECKING:
    from plaunch_report.agents import Agent, EventRecord
    from plaunch_report.event_files import EventFiles
    from plaunch_report.launches import Clock

NO_END = "no end"  # the outcome of an agent that was killed, or still runs
# If agents have different outcomes, the first of these is the outcome of the job.
_OUTCOMES = ("failed", "error", "signalled", "closed", "succeeded", "not_needed", NO_END)
_MAX_WORKERS = 65_536  # of one node


class SummaryBuilder:
    """Puts the events of several agents on one time axis, and combines them.

    Args:
        agents: the agents of one launch.
        event_files: the files of the agents, for the notes.
        launch: the number of the launch among those of its run id.
        launches: the number of launches of its run id.
    """

    def __init__(
        self, agents: list[Agent], event_files: EventFiles, launch: int = 1, launches: int = 1
    ) -> None:
        clocks = align(agents)
        # Nodes are sorted by their last rank; nodes without a rank come last.
        order = sorted(range(len(agents)), key=lambda index: _place(agents[index]))
        self.agents = [agents[index] for index in order]
        self._clocks: list[Clock] = [clocks[index] for index in order]
        self._zero = min(
            agent.earliest + clock.offset
            for agent, clock in zip(self.agents, self._clocks, strict=True)
        )
        self._event_files = event_files
        self._launch, self._launches = launch, launches

    def time(self, node: int, record: EventRecord) -> float:
        """The time of an event, in seconds since the first event of the launch."""
        return self._time(node, record.monotonic)

    def _time(self, node: int, monotonic: float) -> float:
        return monotonic + self._clocks[node].offset - self._zero

    def create_summary(self) -> LaunchSummary:
        """Create the summary."""
        indices = range(len(self.agents))
        nodes = [self._node(index) for index in indices]
        spans = [span for index in indices for span in self._spans(index)]
        marks = [mark for index in indices for mark in self._marks(index)]
        failures = self._failures()
        rounds = self._rounds(nodes, spans)
        decisive = self._decisive(nodes)
        outcome = min((node.outcome for node in decisive), key=_rank_of_outcome)
        last = next(node for node in decisive if node.outcome == outcome)
        started = [agent.last("launcher.started") for agent in self.agents]
        known = [record for record in started if record is not None]
        return LaunchSummary(
            run_id=self.agents[0].run_id,
            launch=self._launch,
            launches=self._launches,
            began=self._zero,
            duration=max(node.end for node in nodes),
            outcome=outcome,
            exit_code=last.exit_code,
            reason=last.reason,
            entry_point=known[0].text("entry_point") if known else "",
            backend=known[0].text("backend") if known else "",
            versions=sorted({_versions(record) for record in known}),
            notes=self._notes(nodes, rounds),
            first_cause=next(iter(failures), None),
            final_cause=_final_cause(failures) if outcome == "failed" else None,
            nodes=nodes,
            rounds=rounds,
            restarts=[restart for index in indices for restart in self._restarts(index)],
            failures=failures,
            marks=sorted(marks, key=lambda mark: mark.time),
            lives=[life for index in indices for life in self._lives(index)],
            spans=spans,
        )

    def _node(self, index: int) -> NodeSummary:
        agent = self.agents[index]
        account = agent.account
        finished, started = agent.last("launcher.finished"), agent.last("launcher.started")
        seconds = account.seconds
        if finished is not None and "seconds_total" in finished.metadata:
            seconds = {
                name: finished.seconds(f"seconds_{name}") for name in (*TIME_CATEGORIES, "total")
            }
        formed = agent.all("rendezvous.completed")
        return NodeSummary(
            label=self._label(index),
            host=agent.host,
            pid=agent.pid,
            group_ranks=[record.number("group_rank") for record in formed],
            ranks=[record.text("ranks") for record in formed],
            local_world_size=_local_world_size(agent, started),
            begin=self._time(index, agent.first),
            end=self._time(index, agent.latest),
            outcome=NO_END if finished is None else finished.text("outcome"),
            reason="" if finished is None else finished.text("reason"),
            exit_code=None if finished is None else finished.code,
            seconds=seconds,
            restarts=account.restarts,
            account=describe_times(seconds, account.restarts),
            skew=self._clocks[index].skew,
        )

    def _label(self, index: int) -> str:
        agent = self.agents[index]
        is_alone = sum(other.host == agent.host for other in self.agents) == 1
        return agent.host if is_alone else f"{agent.host} ({agent.pid})"

    def _decisive(self, nodes: list[NodeSummary]) -> list[NodeSummary]:
        """The nodes that decide the outcome: those of the last round, if possible with an end."""
        last = max(_last_round(agent) for agent in self.agents)
        there = [
            node
            for node, agent in zip(nodes, self.agents, strict=True)
            if _last_round(agent) == last
        ]
        return [node for node in there if node.outcome != NO_END] or there

    def _spans(self, index: int) -> list[PhaseSpan]:
        return [
            PhaseSpan(
                node=index,
                phase=span.phase,
                begin=self._time(index, span.begin),
                end=self._time(index, span.end),
                round=span.round,
            )
            for span in self.agents[index].spans
            if span.end > span.begin
        ]

    def _lives(self, index: int) -> list[WorkerLife]:
        return [
            WorkerLife(
                node=index,
                round=run.round,
                attempt=max(run.attempt, 0),
                local_rank=run.local_rank if run.local_rank <= _MAX_WORKERS else -1,
                global_rank=run.global_rank,
                pid=run.pid,
                begin=self._time(index, run.began),
                end=None if run.ended is None else self._time(index, run.ended),
                exit_code=run.exit_code,
                signal=run.signal_name,
                stopped=run.is_stopped,
            )
            for run in self.agents[index].history.runs
        ]

    def _marks(self, index: int) -> list[TimelineMark]:
        marks = []
        for record in self.agents[index].kept:
            now = self.time(index, record)
            if record.name == "plaunch.restart":
                text = f"restart ({record.text('cause')}): {_why(record)}"
                marks.append(TimelineMark(index, "restart", now, text))
            elif record.name == "plaunch.membership.changed":
                text = f"{record.text('node')} {record.text('kind')}: {record.text('reason')}"
                marks.append(TimelineMark(index, "membership", now, text))
            elif record.name == "plaunch.signal.received":
                text = f"{record.text('signal_name')} received ({record.text('action')})"
                marks.append(TimelineMark(index, "signal", now, text))
            elif record.name == "plaunch.request.received":
                text = f"{record.text('kind')} ({record.text('who')}): {record.text('reason')}"
                marks.append(TimelineMark(index, "request", now, text))
            elif record.name == "plaunch.stop.step" and record.text("step") == "killed":
                after = f"{record.seconds('seconds'):.1f} s"
                text = f"{name_ranks(record.text('stop_ranks'))} killed after {after}"
                marks.append(TimelineMark(index, "killed", now, text))
        return marks

    def _restarts(self, index: int) -> list[RestartSummary]:
        restarts, cause = [], ""
        for record in self.agents[index].kept:
            if record.name == "plaunch.restart":
                cause = record.text("cause")
            elif record.name == "plaunch.restart.completed":
                now, number = self.time(index, record), record.number("round")
                seconds = {
                    name: max(record.seconds(f"seconds_{name}"), 0.0)
                    for name in (*RESTART_PARTS, "total")
                }
                restarts.append(RestartSummary(index, number, now, cause, seconds))
        return restarts

    def _failures(self) -> list[ReportedFailure]:
        found: dict[tuple[int, str, int, int], ReportedFailure] = {}
        # A node records a failure again if it turns out (not) to be the first; the last one wins.
        firsts: dict[tuple[int, str, int, int], dict[int, bool]] = {}
        recorded = [
            (self.time(node, record), node, record)
            for node, agent in enumerate(self.agents)
            for record in agent.all("failure")
        ]
        for now, node, record in sorted(recorded, key=lambda item: item[:2]):
            host, pid = record.text("failed_host"), record.number("worker_pid")
            key = record.number("attempt", 0), host, pid, record.number("global_rank")
            failure = found.get(key)
            if failure is None:
                failure = found[key] = ReportedFailure(
                    attempt=key[0],
                    round=record.number("round"),
                    time=now,
                    global_rank=key[3],
                    host=host,
                    pid=pid,
                    exit_code=record.code,
                    signal=record.text("signal_name"),
                )
            # Nodes may know different details.
            failure.message = failure.message or record.text("message")
            failure.headline = failure.headline or record.text("headline")
            failure.place = failure.place or record.text("place")
            failure.error_file = failure.error_file or record.text("error_file")
            failure.last_lines = failure.last_lines or record.text("last_lines")
            firsts.setdefault(key, {})[node] = record.metadata.get("is_first") is True
            if node not in failure.told_by:
                failure.told_by.append(node)
        for who, failure in found.items():
            failure.is_first = any(firsts[who].values())
        # By round, because a restart that is not counted has the same attempt.
        return sorted(found.values(), key=lambda item: (item.round, not item.is_first, item.time))

    def _rounds(self, nodes: list[NodeSummary], spans: list[PhaseSpan]) -> list[RoundSummary]:
        members: dict[int, list[tuple[int, EventRecord]]] = {}
        for index, agent in enumerate(self.agents):
            for record in agent.all("rendezvous.completed"):
                members.setdefault(record.number("round"), []).append((index, record))
        rounds, ends = [], self._ends_of_rounds()
        for number in sorted(members):
            there = members[number]
            trains = [span for span in spans if span.round == number and span.phase == "training"]
            # A killed launcher did not record the end of its workers.
            known = [one for one in trains if nodes[one.node].outcome != NO_END] or trains
            until = min((span.end for span in known), default=None)
            rounds.append(
                RoundSummary(
                    number=number,
                    attempt=max(record.number("attempt", 0) for _, record in there),
                    formed=min(self.time(index, record) for index, record in there),
                    trains_from=min((span.begin for span in trains), default=None),
                    trains_until=until,
                    world_size=max(record.number("world_size", 0) for _, record in there),
                    nodes=max(record.number("group_world_size", 0) for _, record in there),
                    hosts=[nodes[index].label for index, _ in there],
                    ended_by=ends.get(number, ""),
                )
            )
        return rounds

    def _ends_of_rounds(self) -> dict[int, str]:
        """Why a round was followed by another, by its number."""
        ends: dict[int, str] = {}
        for agent in self.agents:
            current = -1
            for record in agent.kept:
                if record.name == "plaunch.rendezvous.completed":
                    current = record.number("round")
                elif record.name == "plaunch.restart":
                    facts = filter(None, (record.text("cause"), _why(record)))
                    ends.setdefault(current, ": ".join(facts))
        return ends

    def _notes(self, nodes: list[NodeSummary], rounds: list[RoundSummary]) -> list[str]:
        event_files, notes = self._event_files, []
        if self._launches > 1:
            notes.append(
                f"This run id was launched {self._launches} times; this is launch {self._launch} "
                "(choose with --launch)."
            )
        missing = [round_ for round_ in rounds if len(round_.hosts) < round_.nodes]
        if missing:
            most = max(round_.nodes - len(round_.hosts) for round_ in missing)
            notes.append(
                f"Events are missing: of up to {most} of the nodes in {_rounds_text(missing)}. "
                "Copy the files of all hosts below one folder."
            )
        ended = {round_.number for round_ in rounds}
        if ended and min(ended) > 0:
            notes.append(f"The rounds before round {min(ended)} are not in these files.")
        endless = [node.label for node in nodes if node.outcome == NO_END]
        if endless:
            notes.append(
                f"No end is recorded of {_some(endless)}: killed, cut off, or still running."
            )
        if event_files.torn:
            files = "1 file ends" if event_files.torn == 1 else f"{event_files.torn} files end"
            notes.append(f"{files} within a line, which was skipped.")
        if event_files.unreadable:
            lines = (
                "1 line is"
                if event_files.unreadable == 1
                else f"{event_files.unreadable} lines are"
            )
            notes.append(f"{lines} not an event of plaunch and skipped.")
        return notes + self._notes_on_clocks(nodes)

    def _notes_on_clocks(self, nodes: list[NodeSummary]) -> list[str]:
        if len({node.host for node in nodes}) == 1:
            return []
        notes = []
        if any(node.skew is not None for node in nodes if node.group_ranks):
            notes.append(
                "Times are on the monotonic clocks of the hosts, aligned by the rounds that nodes "
                "formed together; dates are those of one host."
            )
        skewed = [node for node in nodes if abs(node.skew or 0.0) >= NOTABLE_SKEW]
        if skewed:
            clocks = [f"{node.label} by {node.skew:+.1f} s" for node in skewed]
            notes.append(f"Clocks differ: {_some(clocks)}. The report corrects for this.")
        alone = [node.label for node in nodes if node.skew is None]
        if alone:
            notes.append(
                f"{_some(alone)} formed no round with others; its times are only as accurate as "
                "its host's clock."
            )
        return notes


def _why(restart: EventRecord) -> str:
    """What has led to a restart, and what was decided; older files have both in one text."""
    return join_facts(restart.text("reason"), restart.text("decision"))


def _place(agent: Agent) -> tuple[bool, int, float]:
    last = agent.last("rendezvous.completed")
    rank = 0 if last is None else last.number("group_rank")
    return last is None, rank, agent.began


def _last_round(agent: Agent) -> int:
    last = agent.last("rendezvous.completed")
    return -1 if last is None else last.number("round")


def _rank_of_outcome(outcome: str) -> int:
    return _OUTCOMES.index(outcome) if outcome in _OUTCOMES else len(_OUTCOMES)


def _versions(record: EventRecord) -> str:
    return f"plaunch {record.text('plaunch')}, Python {record.text('python')}"


def _local_world_size(agent: Agent, started: EventRecord | None) -> int:
    if started is not None:
        return started.number("local_world_size", 0)
    ranks = (run.local_rank for run in agent.history.runs)
    return max((rank for rank in ranks if rank <= _MAX_WORKERS), default=-1) + 1


def _final_cause(failures: list[ReportedFailure]) -> ReportedFailure | None:
    """The first failure of the last round with a failure."""
    last = max((failure.round for failure in failures), default=0)
    return next((failure for failure in failures if failure.round == last), None)


def _rounds_text(rounds: list[RoundSummary]) -> str:
    numbers = _some([str(round_.number) for round_ in rounds])
    return f"round {numbers}" if len(rounds) == 1 else f"rounds {numbers}"


def _some(words: list[str]) -> str:
    """The first few words, and the number of further ones."""
    shown = ", ".join(words[:5])
    return shown if len(words) <= 5 else f"{shown} and {len(words) - 5} more"
