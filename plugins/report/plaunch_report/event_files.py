"""Reading files of events into agents; unreadable lines are counted and skipped."""

from __future__ import annotations

import json
import os
import re
from collections import deque
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from plaunch.errors import UsageError

from plaunch_report.agents import MAX_NUMBER, Agent, EventRecord, Plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_Key = tuple[str, str, int]

_BEGIN = "plaunch.launcher.started"

_LAST_DATE = 253_402_128_000.0  # seconds since the epoch; no date is later (9999-12-30)

_FILE = re.compile(r"(?P<base>.*\.jsonl)(\.(?P<number>\d+))?")


@dataclass
class EventFiles:
    """The event files below some folders, and the agents in them."""

    agents: list[Agent] = field(default_factory=list)
    paths: list[list[str]] = field(default_factory=list)  # per event file: its parts, oldest first
    agents_of: list[list[Agent]] = field(default_factory=list)  # the agents in each item of `paths`
    torn: int = 0  # files with an incomplete last line
    unreadable: int = 0  # other lines that are not events

    @property
    def file_count(self) -> int:
        """The number of files."""
        return sum(map(len, self.paths))

    def records(self) -> Iterator[tuple[Agent, EventRecord]]:
        """Read all events again, with their agents, without events written since the first time."""
        for paths, there in zip(self.paths, self.agents_of, strict=True):
            # Match agents by key, not by position: others may have begun in these files since.
            waiting: dict[_Key, deque[Agent]] = {}
            for agent in there:
                waiting.setdefault((agent.run_id, agent.host, agent.pid), deque()).append(agent)
            known: dict[_Key, tuple[Agent | None, int]] = {}
            for record in _read_files(paths, None):
                key = _key_of(record)
                if key not in known or record.name == _BEGIN:
                    found = waiting.get(key)
                    known[key] = found.popleft() if found else None, 0
                agent_now, count = known[key]
                known[key] = agent_now, count + 1
                if agent_now is not None and count < agent_now.count:
                    yield agent_now, record


def read_folders(folders: Sequence[str], given: Mapping[str, str] | None = None) -> EventFiles:
    """Read all `*.jsonl` files below some folders, including rotated ones.

    If the events of one launcher occur several times, as in bundles of several attempts, the copy
    with the most events is used.

    Args:
        folders: the folders.
        given: what the user has given, by folder, for messages; without it, the folders.

    Raises:
        UsageError: a path is not a folder, cannot be read, or has no event.
    """
    event_files = EventFiles()
    for folder in folders:
        name = folder if given is None else given[folder]
        if not os.path.isdir(folder):
            fault = "is not a folder" if os.path.exists(folder) else "does not exist"
            raise UsageError(
                f"{name!r} {fault}; give the folder that --log-dir named, or a run's folder in it"
            )
        of_folder = EventFiles(paths=_find_files(folder))
        of_folder.agents_of = [_read_agents(paths, of_folder) for paths in of_folder.paths]
        if not any(of_folder.agents_of):
            raise UsageError(f"no events found in {name!r}: {_explain_nothing(of_folder)}")
        event_files.paths += of_folder.paths
        event_files.agents_of += of_folder.agents_of
        event_files.torn += of_folder.torn
        event_files.unreadable += of_folder.unreadable
    _keep_fullest(event_files)
    return event_files


def _keep_fullest(event_files: EventFiles) -> None:
    """Keep only the agent with the most events of each launcher."""
    fullest: dict[tuple[str, str, int, float], Agent] = {}
    for agent in chain.from_iterable(event_files.agents_of):
        launcher = agent.run_id, agent.host, agent.pid, agent.began
        known = fullest.get(launcher)
        if known is None or agent.count > known.count:
            fullest[launcher] = agent
    kept = {*map(id, fullest.values())}
    event_files.agents_of = [
        [one for one in there if id(one) in kept] for there in event_files.agents_of
    ]
    event_files.agents = [*chain.from_iterable(event_files.agents_of)]


def _explain_nothing(event_files: EventFiles) -> str:
    if not event_files.file_count:
        return (
            "it has no *.jsonl files; launch with --event-log-handler=jsonl --log-dir=DIR to have "
            "events written"
        )
    files = "1 file" if event_files.file_count == 1 else f"{event_files.file_count} files"
    if not event_files.torn + event_files.unreadable:
        return f"{files} named *.jsonl, all empty; did the launcher start?"
    return f"{files} named *.jsonl, but no line in them is an event of plaunch"


def _find_files(folder: str) -> list[list[str]]:
    """Find the event files below `folder`; each item has the parts of one file, oldest first."""

    def fail(error: OSError) -> None:
        raise UsageError(f"cannot read {error.filename!r}: {error.strerror}") from error

    found: dict[str, list[tuple[int, str]]] = {}
    for parent, folders, names in os.walk(folder, onerror=fail):
        folders.sort()
        for name in names:
            match = _FILE.fullmatch(name)
            path = os.path.join(parent, name)
            if match and os.path.isfile(path):  # opening a named pipe would block
                number = int(match["number"] or 0)
                found.setdefault(os.path.join(parent, match["base"]), []).append((-number, path))
    return [[path for _, path in sorted(found[base])] for base in sorted(found)]


def _read_agents(paths: list[str], event_files: EventFiles) -> list[Agent]:
    known: dict[_Key, Agent] = {}
    there = []
    for record in _read_files(paths, event_files):
        key = _key_of(record)
        agent = known.get(key)
        # Process ids are reused, usually so in containers.
        if agent is None or record.name == _BEGIN:
            agent = known[key] = Agent(*key)
            there.append(agent)
        agent.note(record)
    return there


def _key_of(record: EventRecord) -> _Key:
    return record.text("run_id"), record.text("host"), record.number("agent_pid")


def _read_files(paths: list[str], event_files: EventFiles | None) -> Iterator[EventRecord]:
    """The events in some files, in order; counts lines that are not events in `event_files`."""
    for path in paths:
        yield from _read_file(path, event_files)


def _read_file(path: str, event_files: EventFiles | None) -> Iterator[EventRecord]:
    try:
        with open(path, "rb") as file:
            for line in file:
                if not line.strip():
                    continue
                record = _parse(line)
                if record is not None:
                    yield record
                elif event_files is None:
                    pass  # it was counted the first time
                elif line.endswith(b"\n"):
                    event_files.unreadable += 1
                else:
                    event_files.torn += 1
    except OSError as error:
        raise UsageError(f"cannot read {path!r}: {error.strerror}") from error


def _parse(line: bytes) -> EventRecord | None:
    try:
        fields = json.loads(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    name, metadata = fields.get("name"), fields.get("metadata")
    date = _seconds(fields.get("timestamp"), 0.0, _LAST_DATE)
    monotonic = _seconds(fields.get("monotonic"), -MAX_NUMBER, MAX_NUMBER)
    if not (isinstance(name, str) and name.startswith("plaunch.") and isinstance(metadata, dict)):
        return None
    if date is None or monotonic is None:
        return None
    plain = {_clean(key): _cleaned(value) for key, value in metadata.items() if _is_plain(value)}
    return EventRecord(_clean(name), date, monotonic, plain)


def _seconds(value: object, low: float, high: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if low <= value <= high else None  # also of NaN


def _cleaned(value: Plain) -> Plain:
    return _clean(value) if isinstance(value, str) else value


def _clean(text: str) -> str:
    """Replace lone surrogates, which JSON may contain and no encoding has."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def _is_plain(value: object) -> bool:
    if isinstance(value, (int, float)):
        return abs(value) <= MAX_NUMBER  # not of NaN
    return value is None or isinstance(value, str)
