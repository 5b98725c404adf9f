"""Stacks of workers: what py-spy writes, and what other nodes send."""

from __future__ import annotations

from plaunch.texts import printable
from plaunch_hang.records import dump_report, load_report
from plaunch_hang.stacks import dump_groups, format_groups, load_groups
from plaunch_hang.stacks.py_spy import UnreadableError, explain, parse_threads
from plaunch_hang.stacks.records import dump_answer, load_answer

from helpers.fuzz_targets import Finding
from helpers.fuzz_targets.reading import Choices, check_equal, check_message

WORDS = tuple(
    f'"{word}"'.encode()
    for word in (
        "thread_name", "os_thread_id", "frames", "name", "filename", "line", "owns_gil", "active",
        "locals", "ranks", "state", "reason", "child", "held", "groups", "short_filename", "pid",
    )
)  # fmt: skip


def check(data):
    """Read stacks; what cannot be read is a ValueError, and what is read can be written again."""
    choices = Choices(data)
    kind = choices.number(5)
    text = choices.rest.decode(errors="replace")
    try:
        if kind == 0:
            for thread in parse_threads(choices.rest, 7):
                check_message(thread.name, 5000)
        elif kind == 1:
            check_message(str(explain(text)), 10_000)
        elif kind == 2:
            _check_groups(load_groups(text))
        elif kind == 3:
            report = load_report(text)
            check_equal(load_report(dump_report(report, 1)), report, "a report is another one")
        else:
            answer = load_answer(text)
            check_equal(load_answer(dump_answer(answer)), answer, "an answer is another one")
    except (ValueError, UnreadableError) as error:
        check_message(printable(str(error)))


def _check_groups(groups):
    check_equal(load_groups(dump_groups(groups)), groups, "stacks are other ones")
    for line in format_groups(groups):
        check_message(line, 100_000)
        if "\n" in line:
            raise Finding(f"a line {line!r}")
