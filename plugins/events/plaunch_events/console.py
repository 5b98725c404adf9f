"""The event handler `console`: events as readable lines on the launcher's stderr."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Final, TextIO

from plaunch.errors import UsageError
from plaunch.numbers import name_ranks
from plaunch.texts import printable

from plaunch_events.time_accounting import RESTART_PARTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plaunch.events import Event, EventMetadataValue
    from plaunch.plugin import PluginContext

    Metadata = Mapping[str, EventMetadataValue]

_PREFIX = "plaunch."
_STATUS = "torchelastic.worker.status."

# The keys printed first; the others follow in the order of the event.
_FIRST_KEYS = ("run_id", "role", "hostname", "group_rank", "global_rank", "local_rank")


class ConsoleEventHandler:
    """Prints each event as one line: local time, the event and its details.

        08:15:00.250 rendezvous.completed: round 0, 4 nodes, 32 workers, after 2.1 s
        08:15:31.004 worker.exited: rank 3 (pid 4711), exit code 1, after 30.6 s

    An event that is not plaunch's is printed with its date, its source and all of its metadata, as
    `key=value` pairs. The names of torchrun's events are printed without their common prefix.

        2026-01-31 08:15:00.250+0100 WORKER SUCCEEDED run_id=exp7 global_rank=3 exit_code=0

    Values with spaces or control characters are quoted; keys without a value are left out.

    Args:
        context: the launch; with its option `keys=all`, all metadata of every event is printed.
        stream: where lines are written; None for `sys.stderr` at the time of each event.

    Raises:
        UsageError: the option `keys` is neither `some` nor `all`.
    """

    options: Final = frozenset({"keys"})
    creates_nothing = True

    def __init__(self, context: PluginContext, stream: TextIO | None = None) -> None:
        keys = context.options.get("keys", "some")
        if keys not in ("some", "all"):
            raise UsageError(f"--event-conf has console.keys={keys!r}; write some or all")
        self._has_all_keys = keys == "all"
        self._stream = stream

    def handle(self, event: Event) -> None:
        """Print one event; raises OSError if the stream cannot be written to."""
        stream = self._stream or sys.stderr
        if stream is not None:
            sentence = (
                None if self._has_all_keys else _SENTENCES.get(event.name.removeprefix(_PREFIX))
            )
            _write(
                stream,
                (_format(event) if sentence is None else _format_sentence(event, sentence)) + "\n",
            )

    def close(self) -> None:
        """Do nothing: every line is already written."""


def _write(stream: TextIO, line: str) -> None:
    if stream is sys.__stderr__:
        # Bypass Python's buffer: a thread blocked in it by a stalled reader holds a lock that the
        # interpreter needs for its exit.
        stream.flush()
        data = line.encode(stream.encoding or "utf-8", "backslashreplace")
        fd = stream.fileno()
        while data:
            data = data[os.write(fd, data) :]
        return
    stream.write(line)
    stream.flush()


# --- plaunch's own events -------------------------------------------------------------------------


def _format_sentence(event: Event, sentence: Callable[[Metadata], list[str]]) -> str:
    clock = _format_time(event.timestamp)[11:23]
    parts = [printable(part) for part in sentence(event.metadata) if part]
    name = event.name.removeprefix(_PREFIX)
    return f"{clock} {name}: {', '.join(parts)}" if parts else f"{clock} {name}"


def _launcher_started(metadata: Metadata) -> list[str]:
    low, high = metadata.get("min_nodes"), metadata.get("max_nodes")
    nodes = _count(high, "node") if low == high else f"{low} to {high} nodes"
    return [
        f"run {metadata.get('run_id')}",
        f"host {metadata.get('host')}",
        nodes,
        f"{_count(metadata.get('local_world_size'), 'worker')} here",
        f"backend {metadata.get('backend')}",
    ]


def _round(metadata: Metadata) -> list[str]:
    attempt = metadata.get("attempt")
    return [f"round {metadata.get('round')}", f"attempt {attempt}" if attempt else ""]


def _rendezvous_completed(metadata: Metadata) -> list[str]:
    return [
        *_round(metadata),
        _count(metadata.get("group_world_size"), "node"),
        _count(metadata.get("world_size"), "worker"),
        f"here {name_ranks(str(metadata.get('ranks')))}",
        _after(metadata.get("duration")),
    ]


def _rendezvous_failed(metadata: Metadata) -> list[str]:
    return [_after(metadata.get("duration")), str(metadata.get("reason"))]


def _preloaded(metadata: Metadata) -> list[str]:
    return [str(metadata.get("modules")), _after(metadata.get("seconds"))]


def _worker_started(metadata: Metadata) -> list[str]:
    return [_rank(metadata)]


def _workers_started(metadata: Metadata) -> list[str]:
    return [name_ranks(str(metadata.get("ranks"))), _after(metadata.get("duration"))]


def _worker_exited(metadata: Metadata) -> list[str]:
    stopped = "stopped" if metadata.get("stopped") else ""
    return [_rank(metadata), stopped, _exit(metadata), _after(metadata.get("lifetime"))]


def _failure(metadata: Metadata) -> list[str]:
    first = "" if metadata.get("is_first") else "not the first"
    headline = str(metadata.get("headline") or "")
    return [f"{_rank(metadata)} on {metadata.get('failed_host')}", first, _exit(metadata), headline]


def _restart_delayed(metadata: Metadata) -> list[str]:
    return [f"in {_duration(metadata.get('seconds'))}"]


def _restart(metadata: Metadata) -> list[str]:
    used = f"{metadata.get('attempt')} of {metadata.get('max_restarts')} used"
    return [f"because of {metadata.get('cause')}", used, str(metadata.get("reason") or "")]


def _restart_completed(metadata: Metadata) -> list[str]:
    parts = {key: metadata.get(f"seconds_{key}") for key in RESTART_PARTS}
    spent = [f"{key} {_duration(seconds)}" for key, seconds in parts.items() if seconds]
    return [*_round(metadata), _after(metadata.get("seconds_total")), *spent]


def _membership_changed(metadata: Metadata) -> list[str]:
    node = metadata.get("node")
    return [
        f"node {node}" if node else "",
        str(metadata.get("kind")),
        str(metadata.get("reason") or ""),
    ]


def _signal_received(metadata: Metadata) -> list[str]:
    node = metadata.get("node")
    what = f"{metadata.get('signal_name')} on {node}" if node else str(metadata.get("signal_name"))
    return [what, str(metadata.get("action"))]


def _stop_step(metadata: Metadata) -> list[str]:
    step, signal = metadata.get("step"), metadata.get("signal_name")
    what = f"{step} with {signal}" if step in ("signalled", "killed") else str(step)
    return [name_ranks(str(metadata.get("stop_ranks"))), what, _after(metadata.get("seconds"))]


def _state_changed(metadata: Metadata) -> list[str]:
    return [f"{metadata.get('old')} to {metadata.get('new')}"]


def _launcher_finished(metadata: Metadata) -> list[str]:
    code = f"exit code {metadata.get('exit_code')}"
    seconds = _after(metadata.get("seconds_total"))
    return [str(metadata.get("outcome")), code, seconds, str(metadata.get("reason") or "")]


_SENTENCES: Final[Mapping[str, Callable[[Metadata], list[str]]]] = {
    "launcher.started": _launcher_started,
    "rendezvous.begun": lambda _: [],
    "rendezvous.completed": _rendezvous_completed,
    "rendezvous.failed": _rendezvous_failed,
    "preload.completed": _preloaded,
    "worker.started": _worker_started,
    "workers.started": _workers_started,
    "worker.exited": _worker_exited,
    "failure": _failure,
    "restart.delayed": _restart_delayed,
    "restart": _restart,
    "restart.completed": _restart_completed,
    "membership.changed": _membership_changed,
    "signal.received": _signal_received,
    "request.received": lambda metadata: [
        str(metadata.get(key)) for key in ("kind", "who", "reason")
    ],
    "stop.step": _stop_step,
    "console.awaited": lambda metadata: [f"{metadata.get('waiting_bytes')} bytes are not shown"],
    "state.changed": _state_changed,
    "launcher.finished": _launcher_finished,
}


def _rank(metadata: Metadata) -> str:
    rank = metadata.get("global_rank")
    if isinstance(rank, int) and rank < 0:
        return f"the launcher (pid {metadata.get('worker_pid')})"
    return f"rank {rank} (pid {metadata.get('worker_pid')})"


def _exit(metadata: Metadata) -> str:
    name = metadata.get("signal_name")
    return str(name) if name else f"exit code {metadata.get('exit_code')}"


def _count(number: EventMetadataValue, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _after(seconds: EventMetadataValue) -> str:
    return f"after {_duration(seconds)}" if isinstance(seconds, (int, float)) else ""


def _duration(seconds: EventMetadataValue) -> str:
    if not isinstance(seconds, (int, float)):
        return ""
    return f"{seconds:.1f} s" if seconds >= 0.1 else f"{seconds * 1000:.1f} ms"


# --- all others -----------------------------------------------------------------------------------


def _format(event: Event) -> str:
    words = [_format_time(event.timestamp), event.source.value]
    words.append(_quote(event.name.removeprefix(_STATUS)))
    metadata = event.metadata
    keys = [key for key in _FIRST_KEYS if key in metadata]
    keys += [key for key in metadata if key not in _FIRST_KEYS]
    words += [
        f"{_quote(key)}={_format_value(metadata[key])}" for key in keys if metadata[key] is not None
    ]
    return " ".join(words)


def _format_value(value: EventMetadataValue) -> str:
    return _quote(value) if isinstance(value, str) else str(value)


def _quote(text: str) -> str:
    """`text` as it is if it is one plain word, else as a Python literal on one line."""
    if text and text.isprintable() and not any(char in " '\"=" for char in text):
        return text
    return repr(text)


def _format_time(timestamp: float) -> str:
    """Seconds since the epoch as local time with milliseconds and the distance from UTC."""
    milliseconds = int(timestamp * 1000)
    local = time.localtime(milliseconds // 1000)
    seconds, zone = time.strftime("%Y-%m-%d %H:%M:%S", local), time.strftime("%z", local)
    return f"{seconds}.{milliseconds % 1000:03d}{zone}"
