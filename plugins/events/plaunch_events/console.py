"""The event handler for people: events as lines on the launcher's stderr."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Final, TextIO

from plaunch.numbers import name_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plaunch.events import Event, EventMetadataValue
    from plaunch.plugin import PluginContext

    Metadata = Mapping[str, EventMetadataValue]

_PREFIX = "plaunch."
_STATUS = "torchelastic.worker.status."

# What a reader looks for comes first; other keys follow in the order of the event.
_FIRST_KEYS = ("run_id", "role", "hostname", "group_rank", "global_rank", "local_rank")


class ConsoleEventHandler:
    """Prints each event as one line: local time, the event and its details.

        08:15:00.250 rendezvous.completed: round 0, 4 nodes, 32 workers, after 2.1 s
        08:15:31.004 worker.exited: rank 3 (pid 4711), exit code 1, after 30.6 s

    An event that plaunch does not know is printed with its date, its source and all of its
    metadata, as `key=value` pairs; torchrun's without what its names begin with.

        2026-01-31 08:15:00.250+0100 WORKER SUCCEEDED run_id=exp7 global_rank=3 exit_code=0

    Values with spaces or control characters are quoted, keys without a value are left out.

    Args:
        context: the launch; its option `keys=all` prints all metadata of every event.
        stream: takes the lines; None means the `sys.stderr` of that time.

    Raises:
        UsageError: the option has another value.
    """

    options: Final = frozenset({"keys"})

    def __init__(self, context: PluginContext, stream: TextIO | None = None) -> None:
        keys = context.options.get("keys", "some")
        if keys not in ("some", "all"):
            from plaunch.errors import UsageError  # errors only

            raise UsageError(f"--event-conf has console.keys={keys!r}; write some or all")
        self._has_all_keys = keys == "all"
        self._stream = stream

    def handle(self, event: Event) -> None:
        """Print one event at once; raises OSError if the stream is gone."""
        stream = self._stream or sys.stderr
        if stream is not None:
            say = None if self._has_all_keys else _SENTENCES.get(event.name.removeprefix(_PREFIX))
            _write(stream, (_format(event) if say is None else _say(event, say)) + "\n")

    def close(self) -> None:
        """Do nothing: every line has been written already."""


def _write(stream: TextIO, line: str) -> None:
    if stream is sys.__stderr__:
        # Past Python's buffer: who waits within it, for a reader who does not read, holds a lock
        # that the interpreter needs to end.
        stream.flush()
        data = line.encode(stream.encoding or "utf-8", "backslashreplace")
        fd = stream.fileno()
        while data:
            data = data[os.write(fd, data) :]
        return
    stream.write(line)
    stream.flush()


# --- plaunch's own events -------------------------------------------------------------------------


def _say(event: Event, say: Callable[[Metadata], list[str]]) -> str:
    clock = _format_time(event.timestamp)[11:23]
    parts = [_plain(part) for part in say(event.metadata) if part]
    name = event.name.removeprefix(_PREFIX)
    return f"{clock} {name}: {', '.join(parts)}" if parts else f"{clock} {name}"


def _plain(text: str) -> str:
    """`text` on one line, without what a terminal would act on."""
    return text if text.isprintable() else repr(text)[1:-1]


def _launcher_started(told: Metadata) -> list[str]:
    low, high = told.get("min_nodes"), told.get("max_nodes")
    nodes = _count(high, "node") if low == high else f"{low} to {high} nodes"
    return [
        f"run {told.get('run_id')}",
        f"host {told.get('host')}",
        nodes,
        f"{_count(told.get('local_world_size'), 'worker')} here",
        f"backend {told.get('backend')}",
    ]


def _round(told: Metadata) -> list[str]:
    attempt = told.get("attempt")
    return [f"round {told.get('round')}", f"attempt {attempt}" if attempt else ""]


def _rendezvous_completed(told: Metadata) -> list[str]:
    return [
        *_round(told),
        _count(told.get("group_world_size"), "node"),
        _count(told.get("world_size"), "worker"),
        f"here {name_ranks(str(told.get('ranks')))}",
        _after(told.get("duration")),
    ]


def _rendezvous_failed(told: Metadata) -> list[str]:
    return [_after(told.get("duration")), str(told.get("reason"))]


def _preloaded(told: Metadata) -> list[str]:
    return [str(told.get("modules")), _after(told.get("seconds"))]


def _worker_started(told: Metadata) -> list[str]:
    return [_rank(told)]


def _workers_started(told: Metadata) -> list[str]:
    return [name_ranks(str(told.get("ranks"))), _after(told.get("duration"))]


def _worker_exited(told: Metadata) -> list[str]:
    stopped = "stopped" if told.get("stopped") else ""
    return [_rank(told), stopped, _exit(told), _after(told.get("lifetime"))]


def _failure(told: Metadata) -> list[str]:
    first = "" if told.get("is_first") else "not the first"
    headline = str(told.get("headline") or "")
    return [f"{_rank(told)} on {told.get('failed_host')}", first, _exit(told), headline]


def _restart_delayed(told: Metadata) -> list[str]:
    return [f"in {_lasting(told.get('seconds'))}"]


def _restart(told: Metadata) -> list[str]:
    used = f"{told.get('attempt')} of {told.get('max_restarts')} used"
    return [f"because of {told.get('cause')}", used, str(told.get("reason") or "")]


def _restart_completed(told: Metadata) -> list[str]:
    parts = {
        key: told.get(f"seconds_{key}") for key in ("noticing", "stopping", "waiting", "starting")
    }
    spent = [f"{key} {_lasting(seconds)}" for key, seconds in parts.items() if seconds]
    return [*_round(told), _after(told.get("seconds_total")), *spent]


def _membership_changed(told: Metadata) -> list[str]:
    node = told.get("node")
    return [f"node {node}" if node else "", str(told.get("kind")), str(told.get("reason") or "")]


def _signal_received(told: Metadata) -> list[str]:
    node = told.get("node")
    what = f"{told.get('signal_name')} on {node}" if node else str(told.get("signal_name"))
    return [what, str(told.get("action"))]


def _stop_step(told: Metadata) -> list[str]:
    step, signal = told.get("step"), told.get("signal_name")
    what = f"{step} with {signal}" if step in ("signalled", "killed") else str(step)
    return [name_ranks(str(told.get("stop_ranks"))), what, _after(told.get("seconds"))]


def _state_changed(told: Metadata) -> list[str]:
    return [f"{told.get('old')} to {told.get('new')}"]


def _launcher_finished(told: Metadata) -> list[str]:
    code = f"exit code {told.get('exit_code')}"
    seconds = _after(told.get("seconds_total"))
    return [str(told.get("outcome")), code, seconds, str(told.get("reason") or "")]


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
    "request.received": lambda told: [str(told.get(key)) for key in ("kind", "who", "reason")],
    "stop.step": _stop_step,
    "console.awaited": lambda told: [f"{told.get('waiting_bytes')} bytes are not shown"],
    "state.changed": _state_changed,
    "launcher.finished": _launcher_finished,
}


def _rank(told: Metadata) -> str:
    rank = told.get("global_rank")
    if isinstance(rank, int) and rank < 0:
        return f"the launcher (pid {told.get('worker_pid')})"
    return f"rank {rank} (pid {told.get('worker_pid')})"


def _exit(told: Metadata) -> str:
    name = told.get("signal_name")
    return str(name) if name else f"exit code {told.get('exit_code')}"


def _count(number: EventMetadataValue, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _after(seconds: EventMetadataValue) -> str:
    return f"after {_lasting(seconds)}" if isinstance(seconds, (int, float)) else ""


def _lasting(seconds: EventMetadataValue) -> str:
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
        f"{_quote(key)}={_format_value(metadata[key])}" for key in keys if _has(metadata[key])
    ]
    return " ".join(words)


def _has(value: EventMetadataValue) -> bool:
    return value is not None


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
