"""What workers write: lines, progress bars, tracebacks."""

from __future__ import annotations

import json

from plaunch.process import ChildFailedError, ProcessFailure, shorten
from plaunch.process import tracebacks as parsing
from plaunch.process.consequences import find_consequence
from plaunch.texts import printable, printable_message, printable_output
from plaunch_logs_default.streams.json_lines import JsonLinesToConsole, LineFormat
from plaunch_logs_default.streams.lines import LinesToConsole, MatchesToFile, Prefix

from helpers.fuzz_targets import Finding
from helpers.fuzz_targets.reading import Choices, check_equal, check_message, divide

WORDS = (
    b"Traceback (most recent call last):\n", b'  File "/job/train.py", line 7, in main\n',
    b"ValueError: bad\n", b"Fatal Python error: Segmentation fault\n", b"\r", b"\x1b[31m", b"\xff",
    b"\nThe above exception was the direct cause of the following exception:\n\n", b"[rank0]: ",
    b"During handling of the above exception, another exception occurred:\n\n",
    b"  + Exception Group Traceback (most recent call last):\n", b"  | ", b"Original Traceback",
    b"terminate called after throwing an instance of 'c10::Error'\n", b"  what():  ",
    b"Exception in thread Thread-1:\n", b"    raise ValueError(1)\n", b"Connection closed by peer",
    b"Current thread 0x00007f (most recent call first):\n", b"frame #0: ", b"\xe2\x80\xae",
)  # fmt: skip
_CODES = (1, 2, -6, -9, -11, 139)


class _Console:
    """Keeps what it is given; not a terminal."""

    is_terminal = False

    def __init__(self):
        self.data = b""

    def put(self, text, source, *, shown=0):
        self.data += text[shown:]


class _File:
    def __init__(self):
        self.data = b""

    def write(self, data):
        self.data += data


def check(data):
    """Show output, divided anywhere, and report it as the last lines of a worker."""
    choices = Choices(data)
    code = choices.one_of(_CODES)
    output = choices.rest
    for make in (_show_lines, _show_json, _show_matches):
        found = [make(parts) for parts in divide(output)]
        for one in found[1:]:
            check_equal(one, found[0], f"{make.__name__}: other parts, another result")
    _check_lines(output, _show_lines([output]))
    text = output.decode(errors="replace")
    _check_text(text)
    _check_report(text.split("\n"), code)


def _show_lines(parts):
    console = _Console()
    sink = LinesToConsole(Prefix("[0]:"), console, clock=lambda: 0.0)
    for part in parts:
        sink.write(part)
    sink.close()
    return console.data


def _check_lines(output, shown):
    r"""Nothing is lost or changed but a missing end of the last line."""
    plain = shown.replace(b"[0]:", b"") if b"[0]:" not in output else None
    if plain is None:
        return
    if plain not in (output, output + b"\n"):
        raise Finding(f"{output!r} is shown as {shown!r}")


def _show_json(parts):
    console = _Console()
    line_format = LineFormat('{"utc": ${utc}, "m": ${line}}', "stdout", clock=lambda: 0.0)
    sink = JsonLinesToConsole(line_format, console)
    for part in parts:
        sink.write(part)
    sink.close()
    for line in console.data.splitlines():
        json.loads(line)
    return console.data


def _show_matches(parts):
    file = _File()
    sink = MatchesToFile(Prefix("").format_lines, [b"a", b"Error"], file)
    for part in parts:
        sink.write(part)
    sink.close()
    return file.data


def _check_text(text):
    for clean in (printable, printable_output):
        once = clean(text)
        check_message(once, 4096)
        if "\n" in once:
            raise Finding(f"several lines: {once!r}")
        check_equal(clean(once), once, "a text that was cleaned is another one")
    check_message(printable_message(text), 5_000_000)


def _check_report(lines, code):
    for most in (1, 8, 30):
        if len(shorten(lines, most)) > max(most, 1) + 2:
            raise Finding(f"{len(shorten(lines, most))} lines of {most}")
    raised = parsing.raised_in_output(lines, code)
    parsing.chain_in_output(lines, code)
    parsing.abort_in_output(lines)
    parsing.are_asides(lines)
    find_consequence(raised.text)
    shown = [printable_output(line) for line in lines]
    failure = ProcessFailure(0, 7, code, "", last_lines=shown, timestamp=1.0, host="h")
    error = ChildFailedError("train.py", {0: failure})
    check_message(failure.headline, 5000)
    check_message(str(error), 2_000_000)
    check_message(error.for_console(), 2_000_000)
    if error.exit_code not in range(1, 256):
        raise Finding(f"exit code {error.exit_code}")
