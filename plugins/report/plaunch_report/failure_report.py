"""The failure report: the first failure and its cause, other failures, and stopped workers.

This is the text of a `ChildFailedError`.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from plaunch.numbers import name_ranks
from plaunch.process import describe_exit, shorten
from plaunch.texts import printable_output

from plaunch_report.hints import find_hints

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plaunch.process import ChildFailedError, ProcessFailure

MAX_STDERR_LINES = 20
MAX_TRACEBACK_LINES = 200
MAX_OTHER_FAILURES = 32
MAX_SUMMARY_CHARS = 160

DATE = "%Y-%m-%d %H:%M:%S.%f %z"
_CLOCK = "%H:%M:%S.%f"
NO_FILE = "<N/A>"  # `ProcessFailure.error_file` without a file


def format_report(error: ChildFailedError, border: str = "", section: str = "") -> str:
    """Format the report, with rules of `border` around it and of `section` between its parts."""
    first, root = error.get_first_failure()
    host = printable_output(root.host)
    what = f"the launcher on {host} failed"
    if first >= 0:
        what = f"rank {first} on {host}: {printable_output(root.headline)}"
    elif is_of_node(root):
        what = printable_output(root.headline)
    title = f"{error.name} FAILED: {what}"
    parts = [_first_failure(first, root, error.early_ends)]
    if error.no_restart:
        parts.insert(0, [f"No restart: {printable_output(error.no_restart)}"])
    others = [rank for rank in error.failures if rank != first]
    if others or error.counted:
        parts.append(_other_failures(others, error.failures, error.counted))
    # The text of a hang already includes them.
    if error.early_ends and not root.hung:
        parts.append([f"Ended before: {printable_output(line)}" for line in error.early_ends])
    if error.stopped:
        parts.append([f"Stopped by plaunch: {describe_stopped(error.stopped)}"])
    width = min(len(title), 80)
    lines = [title]
    for part in parts:
        lines.append((section * width)[:width])
        lines.extend(part)
    if border:
        rule = (border * width)[:width]
        lines = [rule, *lines, rule]
    return "\n".join(lines)


def is_of_node(failure: ProcessFailure) -> bool:
    """Whether it is the loss or departure of a node, whose text names the node."""
    return failure.pid == 0 and (failure.global_rank or 0) < 0


def _first_failure(rank: int, failure: ProcessFailure, early_ends: Sequence[str]) -> list[str]:
    if rank < 0:
        pid = [] if is_of_node(failure) else [f"  pid:        {failure.pid} (the launcher)"]
        return [
            "First failure:",
            f"  host:       {printable_output(failure.host)}",
            *pid,
            f"  time:       {describe_time(failure.timestamp, DATE)}",
            *explain_launcher(failure),
        ]
    lines = [
        "First failure:",
        f"  host:       {printable_output(failure.host)}",
        f"  rank:       {rank} (local rank {failure.local_rank})",
        f"  pid:        {failure.pid}",
        f"  time:       {describe_time(failure.timestamp, DATE)}",
        f"  ended:      {failure.describe_exit()}",
        *(f"  log file:   {printable_output(path)}" for path in failure.log_files),
    ]
    if failure.error_file != NO_FILE:
        lines.append(f"  error file: {printable_output(failure.error_file)}")
    lines += [f"  hint:       {printable_output(text)}" for text in find_hints(failure, early_ends)]
    return lines + explain(failure)


def explain_launcher(failure: ProcessFailure) -> list[str]:
    """The error of a launcher that failed, below a header."""
    return block("its error:", failure.text.splitlines(), MAX_TRACEBACK_LINES)


def explain(failure: ProcessFailure) -> list[str]:
    """The worker's own explanation: its traceback, or else its last lines, with a header."""
    lines: list[str] = []
    if failure.has_reply:
        callstack = failure.traceback
        if callstack:
            shown = failure.enrich(callstack).splitlines()
            return lines + block("Python traceback:", shown, MAX_TRACEBACK_LINES)
        text = failure.enrich(failure.text)
        if text:
            what = "where the workers were:" if failure.hung else "what it reported:"
            lines += block(what, text.splitlines(), MAX_TRACEBACK_LINES)
    elif (text := failure.enrich(failure.text)) != failure.exit_sentence():
        # The error file was unreadable, or something else is known besides the exit code.
        first, *more = text.splitlines() or [""]
        lines.append(f"  message:    {printable_output(first)}")
        lines += [f"              {printable_output(line)}" for line in more[:MAX_TRACEBACK_LINES]]
    if failure.last_lines:
        return lines + block("last lines of its stderr:", failure.last_lines, MAX_STDERR_LINES)
    if os.environ.get("PLAUNCH_CAPTURE_STDERR") == "0" and not failure.log_files:
        return [*lines, "  Its output on stderr was not kept (PLAUNCH_CAPTURE_STDERR=0)."]
    return [*lines, "  It wrote nothing to stderr."]


def _other_failures(
    ranks: Sequence[int], failures: Mapping[int, ProcessFailure], counted: Mapping[str, int]
) -> list[str]:
    """One line for each of these ranks, and for each group of failures that are only counted."""
    lines = [f"Other failures ({len(ranks) + sum(counted.values())}):"]
    by_time = sorted(ranks, key=lambda rank: failures[rank].timestamp)
    for rank in by_time[:MAX_OTHER_FAILURES]:
        failure = failures[rank]
        summary = summarize(failure)
        if rank < 0:
            who = f"the launcher on {printable_output(failure.host)}, pid {failure.pid}"
            if is_of_node(failure):
                who = f"node {printable_output(failure.host)}"
            lines.append(f"  {who}, at {describe_time(failure.timestamp, _CLOCK)}: {summary}")
            continue
        lines.append(
            f"  rank {rank} (local rank {failure.local_rank}) on {printable_output(failure.host)},"
            f" pid {failure.pid}, at {describe_time(failure.timestamp, _CLOCK)}:"
            f" {failure.describe_exit()}" + (f": {summary}" if summary else "")
        )
    rest = by_time[MAX_OTHER_FAILURES:]
    if rest:
        lines.append(f"  and {len(rest)} more: {name_ranks(rest)}")
    lines += [f"  and {count} more: {printable_output(words)}" for words, count in counted.items()]
    return lines


def describe_stopped(stopped: Mapping[int, int]) -> str:
    """The ranks that plaunch stopped, grouped by how they ended."""
    groups: dict[int, list[int]] = {}
    for rank, exitcode in sorted(stopped.items()):
        groups.setdefault(exitcode, []).append(rank)
    return ", ".join(
        f"{name_ranks(ranks)} ({_name_exit(exitcode)})" for exitcode, ranks in groups.items()
    )


def _name_exit(exitcode: int) -> str:
    if exitcode >= 0:
        return describe_exit(exitcode)
    try:
        return signal.Signals(-exitcode).name
    except ValueError:
        return f"signal {-exitcode}"


def summarize(failure: ProcessFailure) -> str:
    """One line about the cause: the exception, else the last line on stderr."""
    if failure.is_consequence:
        return printable_output(failure.headline)
    text = failure.raised.text
    lines = [
        printable_output(line).strip() for line in text.splitlines() or reversed(failure.last_lines)
    ]
    line = next(filter(None, lines), "")
    if len(line) > MAX_SUMMARY_CHARS:
        line = line[: MAX_SUMMARY_CHARS - 3] + "..."
    return f"{line} ({printable_output(failure.place)})" if failure.place else line


def block(header: str, lines: Sequence[str], limit: int) -> list[str]:
    """Format lines, indented below a header; more than `limit` lines are shortened."""
    shown = shorten([printable_output(line) for line in lines], limit)
    return [f"  {header}", *(f"    {line}".rstrip() for line in shown)]


def describe_time(timestamp: float, form: str) -> str:
    """Format a timestamp in this host's time zone; "an unknown time" if it is out of range."""
    from datetime import datetime  # failures only

    try:
        # `astimezone` fails for the first and the last representable day.
        return f"{datetime.fromtimestamp(timestamp).astimezone():{form}}"
    except (ValueError, OverflowError, OSError):
        return "an unknown time"
