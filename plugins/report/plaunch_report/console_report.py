"""The message about a failed job on the launcher's console.

It is shorter than the failure report, which is the text of the exception: a headline, what the
console has not shown yet, and the paths of log files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.numbers import name_ranks
from plaunch.texts import printable_output
from plaunch_events import describe_seconds

from plaunch_report.failure_report import (
    MAX_STDERR_LINES,
    MAX_TRACEBACK_LINES,
    NO_FILE,
    block,
    describe_stopped,
    describe_time,
    explain,
    explain_launcher,
    is_of_node,
    summarize,
)
from plaunch_report.hints import find_hints

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from plaunch.process import ChildFailedError, EarlierAttempt, ProcessFailure

MAX_EARLIER = 10
MAX_OTHERS = 16
_DATE = "%Y-%m-%d %H:%M:%S"


def format_for_console(error: ChildFailedError) -> str:
    """Write the message; its first line is a headline, and all others are indented."""
    return "\n".join((_headline(error), *_details(error)))


def _headline(error: ChildFailedError) -> str:
    rank, root = error.get_first_failure()
    if is_of_node(root):
        return printable_output(root.headline)
    who = f"rank {rank}" if rank >= 0 else "the launcher"
    after = "" if root.lifetime is None else f" after {describe_seconds(root.lifetime)}"
    return (
        f"{who} on {printable_output(root.host)} failed{after}: {printable_output(root.headline)}"
    )


def _details(error: ChildFailedError) -> Iterator[str]:
    rank, root = error.get_first_failure()
    if error.no_restart:
        yield f"  No restart: {printable_output(error.no_restart)}"
    # The text of a hang already includes them.
    if not root.hung:
        yield from (f"  {printable_output(line)}" for line in error.early_ends)
    yield from _explain(rank, root)
    where = "launcher" if rank < 0 else f"local rank {root.local_rank}"
    when = describe_time(root.timestamp, _DATE)
    name = printable_output(error.name)
    if is_of_node(root):  # how its workers ended is not known; they may still run
        yield f"  job: {name}, exit code {root.exitcode}, {when}"
    else:
        ended = root.describe_exit()
        yield f"  process: {name}, {where}, pid {root.pid}, {ended}, {when}"
    for text in find_hints(root, error.early_ends):
        yield f"  hint: {printable_output(text)}"
    for path in root.log_files:
        yield f"  log file: {printable_output(path)}"
    if root.error_file != NO_FILE:
        yield f"  error file: {printable_output(root.error_file)}"
    yield from _other_failures(error)
    if error.stopped:
        yield f"  stopped because of it: {describe_stopped(error.stopped)}"
    yield from _earlier_attempts(error.earlier)


def _explain(rank: int, root: ProcessFailure) -> Sequence[str]:
    if rank < 0:
        # One line is the headline.
        return explain_launcher(root) if "\n" in root.text.strip() else ()
    if root.hung:
        return _explain_hang(root)
    if _is_shown(root):
        return ("  Its last lines on stderr are above.",)
    return explain(root)


def _explain_hang(root: ProcessFailure) -> list[str]:
    """The stacks of the other ranks, and the last lines of the rank in the headline."""
    others = root.text.splitlines()[1:]
    lines = block("where the others were:", others, MAX_TRACEBACK_LINES) if others else []
    if not root.last_lines:
        return lines
    if root.is_shown:
        return [*lines, "  Its last lines on stderr are above."]
    return lines + block("last lines of its stderr:", root.last_lines, MAX_STDERR_LINES)


def _is_shown(root: ProcessFailure) -> bool:
    """Whether the console has already shown everything that `explain` returns."""
    if not (root.is_shown and root.last_lines):
        return False
    said = root.traceback or root.text
    if (enriched := root.enrich(said)) != said:
        return False
    if not root.has_reply:
        return root.message == root.exit_sentence()
    # A worker that reports an exception usually also exits with its traceback on stderr.
    text = enriched.rstrip().splitlines()
    return bool(text) and any(
        printable_output(line).endswith(printable_output(text[-1])) for line in root.last_lines
    )


def _other_failures(error: ChildFailedError) -> Iterator[str]:
    """One line for all failures of one host that look the same."""
    first, root = error.get_first_failure()
    alike: dict[tuple[str, str, str], list[int]] = {}
    for rank, failure in sorted(error.failures.items(), key=lambda item: item[1].timestamp):
        if rank != first:
            who = "" if rank >= 0 else "the launcher"
            alike.setdefault((who, failure.host, _how(rank, failure)), []).append(rank)
    for (who, host, how), ranks in [*alike.items()][:MAX_OTHERS]:
        what = "the same" if how == _how(first, root) else how
        yield f"  also failed: {who or name_ranks(ranks)} on {printable_output(host)}: {what}"
    if rest := [rank for ranks in [*alike.values()][MAX_OTHERS:] for rank in ranks]:
        yield f"  also failed: {len(rest)} more: {name_ranks(rest)}"
    for words, count in error.counted.items():
        yield f"  also failed: {count} more: {printable_output(words)}"


def _how(rank: int, failure: ProcessFailure) -> str:
    summary, ended = summarize(failure), failure.describe_exit()
    return summary if rank < 0 else f"{ended}: {summary}" if summary else ended


def _earlier_attempts(earlier: Sequence[EarlierAttempt]) -> Iterator[str]:
    if len(earlier) > MAX_EARLIER:
        yield f"  {len(earlier) - MAX_EARLIER} attempts before these"
    for one in earlier[-MAX_EARLIER:]:
        lasted = describe_seconds(one.seconds)
        yield f"  attempt {one.attempt}: {printable_output(one.cause)}, after {lasted}"
