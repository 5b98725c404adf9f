"""Draws docs/screens from real launches in terminals: `python tools/docs/screens.py`.

Each screen shows a launch in a terminal of a certain width: its lines wrap where plaunch or the
terminal wraps them, and replaced lines are gone. Times, process ids, paths, ports and the
host name are replaced by fixed values, so that the same launcher yields the same picture. A test
compares them.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from html import escape, unescape
from pathlib import Path
from typing import TYPE_CHECKING

from plaunch_report.wrapping import wrap

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMAND = "python tools/docs/screens.py"
TARGET = Path(__file__).parents[2] / "docs" / "screens"
WIDTHS = (80, 120)
_WIDE = 1000  # columns while it runs: lines are wrapped when they have their fixed values
PATIENCE = 120.0  # seconds for a launch, on a machine that is busy

_TRAIN = """\
import os
import time

RANK = int(os.environ["RANK"])


def read_lr(config):
    if RANK == 1 and "lr" not in config:
        raise ValueError("lr missing")
    time.sleep(60)


time.sleep(1)
if RANK == 0:
    print("epoch 1: loss 0.61", flush=True)
time.sleep(0.5)
read_lr({"batch_size": 32})
"""
_LOADS = """\
import os
import time

RANK, ATTEMPT = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
time.sleep(1.5 if RANK == 1 else 60)
if ATTEMPT == "0":
    raise SystemExit(7)
raise OSError("shard 17 lost")
"""


@dataclass(frozen=True)
class Launch:
    """A launch, and the text alternative of its screen.

    Args:
        argv: the arguments of plaunch; `PORT` in them is replaced by a free port.
        script: the content of `train.py`.
        until: draw the screen when this text appears; empty to wait for the end of the launch.
        changes: more regular expressions, and their replacements.
    """

    argv: tuple[str, ...]
    script: str
    until: str = ""
    changes: dict[str, str] = field(default_factory=dict)


LAUNCHES = {
    "failing": Launch(
        ("--nproc-per-node=4", "--tee=3", "--log-dir=logs", "--rdzv-id=exp7", "train.py"),
        _TRAIN,
        changes={"this launch took .*": "this launch took 12 s: 12 s training"},
    ),
    "waiting": Launch(
        (
            *("--nnodes=2", "--node-rank=0", "--rdzv-id=exp7", "--master-addr=localhost"),
            *("--master-port=PORT", "train.py"),
        ),
        _TRAIN,
        until="Ctrl-C ends it)",
        changes={r"\(\d+ s; ": "(12 s; ", " --master-port=29500": ""},  # which is the default
    ),
    "restarting": Launch(
        ("--nproc-per-node=2", "--max-restarts=1", "--rdzv-id=exp7", "train.py"),
        _LOADS,
        changes={
            "restarted in .*": "restarted in 0.1 s: 0.1 s stopping",
            "this launch took .*": "this launch took 24 s: 24 s training, 0.1 s lost to 1 restart",
        },
    ),
}
_CHANGES = {
    r"\bpid \d+": "pid 4242",
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d": "2026-01-31 08:15:00",
    r"(?<=after )[\d.]+ s\b": "12 s",
    r"(?<=exp7_)\w{8}": "5f2c81d0",
}

_WIDTH, _HEIGHT, _MARGIN = 7.8, 18, 14  # pixels: of a character, of a line, around all
_FONT = "font-family='DejaVu Sans Mono, Menlo, Consolas, monospace' font-size='13'"
_COLOURS = {"": "#d8dee9", "31": "#ff7b72", "33": "#e3b341", "36": "#56d4dd"}
_SEQUENCE = re.compile(r"\x1b\[(?P<words>[\d;]*)(?P<kind>[mK])|(?P<char>.)", re.DOTALL)


def show(launch: Launch, columns: int) -> str:
    """Return the output of a launch on a terminal of this width, with fixed times and names.

    Raises:
        TimeoutError: it did not end, or did not show the text.
    """
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
        free.close()
        (Path(folder) / "train.py").write_text(launch.script)
        argv = [word.replace("PORT", port) for word in launch.argv]
        output = _run(argv, folder, launch.until).replace(" " * _WIDE + "\r\x1b[K", "")
        text = f"$ plaunch {' '.join(argv)}\n" + output.replace(folder, "/home/ada")
        text = text.replace(port, "29500").replace("localhost", "node-a")
    for found, other in {**_CHANGES, **launch.changes}.items():
        text = re.sub(found, other, text)
    text = re.sub(rf"(?<=\bon ){re.escape(socket.gethostname())}\b", "node-a", text)
    return wrap(text, columns)


def _run(argv: Sequence[str], folder: str, until: str) -> str:
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, _WIDE, 0, 0))
    env = {
        **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        **{"TERM": "xterm", "LANG": "C.UTF-8", "TZ": "UTC"},
        # Make tracebacks of all Python versions equal.
        **{"PYTHONNODEBUGRANGES": "1", "PYTHON_COLORS": "0"},
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "plaunch", *argv],
        **{"cwd": folder, "env": env, "stdin": theirs, "stdout": theirs, "stderr": theirs},
        start_new_session=True,
    )
    os.close(theirs)
    try:
        return _read(ours, until)
    finally:
        process.send_signal(signal.SIGINT)  # the wait, which would not end; else it has ended
        process.wait(PATIENCE)
        os.close(ours)


def _read(terminal: int, until: str) -> str:
    output, give_up_at = b"", time.monotonic() + PATIENCE
    while not (until and until.encode() in output):
        if not select.select([terminal], [], [], max(give_up_at - time.monotonic(), 0))[0]:
            raise TimeoutError(
                f"after {PATIENCE:g} s, the launch has shown no more than {output!r}"
            )
        try:
            output += os.read(terminal, 65536)
        except OSError:  # all processes have closed it
            break
    return output.decode().replace("\r\n", "\n")


class Screen:
    """The content of a terminal: characters with a style, in lines of fixed width.

    It supports the control sequences that plaunch writes: colours, and those that replace a
    replaced.
    """

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._lines: list[list[tuple[str, str]]] = [[]]
        self._style = ""
        self._at = 0

    def write(self, text: str) -> None:
        """Write text to the terminal."""
        for found in _SEQUENCE.finditer(text):
            char = found["char"]
            if found["kind"] == "m":
                self._style = "" if found["words"] == "0" else found["words"]
            elif found["kind"] == "K":
                del self._lines[-1][self._at :]
            elif char == "\r":
                self._at = 0
            elif char == "\n":
                self._begin_line()
            else:
                if self._at == self._columns:
                    self._begin_line()
                self._lines[-1][self._at :] = [(char, self._style)]
                self._at += 1

    def _begin_line(self) -> None:
        self._lines.append([])
        self._at = 0

    def lines(self) -> list[str]:
        """Return the characters of each line."""
        return ["".join(char for char, _ in line) for line in self._lines]

    def runs(self, line: int) -> list[tuple[int, str, str]]:
        """Yield the runs of one style in a line: start column, style, and text."""
        runs: list[tuple[int, str, str]] = []
        for column, (char, style) in enumerate(self._lines[line]):
            if runs and runs[-1][1] == style:
                runs[-1] = (*runs[-1][:2], runs[-1][2] + char)
            else:
                runs.append((column, style, char))
        return runs


def draw(name: str, columns: int) -> str:
    """Return the picture of one screen as SVG; `name` is a key of `LAUNCHES`."""
    screen = Screen(columns)
    screen.write(show(LAUNCHES[name], columns).rstrip("\n"))
    lines = screen.lines()
    width, height = columns * _WIDTH + 2 * _MARGIN, len(lines) * _HEIGHT + 2 * _MARGIN
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:g} {height}' "
        f"width='{width:g}' height='{height}' {_FONT} role='img'>",
        f"<title>A {name} launch on a terminal of {columns} columns</title>",
        f"<rect width='{width:g}' height='{height}' rx='6' fill='#161b22'/>",
    ]
    for line in range(len(lines)):
        y = _MARGIN + line * _HEIGHT + 13
        for column, style, text in screen.runs(line):
            if text.strip():
                parts.append(_text(_MARGIN + column * _WIDTH, y, style, text))
    return "\n".join([*parts, "</svg>\n"])


def _text(x: float, y: int, style: str, text: str) -> str:
    words = style.split(";")
    color = next((_COLOURS[word] for word in words if word in _COLOURS), _COLOURS[""])
    weight = " font-weight='bold'" if "1" in words else ""
    dim = " opacity='0.6'" if "2" in words else ""
    length = len(text) * _WIDTH
    return (
        f"<text x='{x:.1f}' y='{y}' fill='{color}'{weight}{dim} textLength='{length:.1f}' "
        f"xml:space='preserve'>{escape(text)}</text>"
    )


def lines_of(picture: str) -> list[str]:
    """Return the lines of text in a picture."""
    lines: dict[str, str] = {}
    for y, text in re.findall(r"<text x='[\d.]+' y='(\d+)'.*?>(.*?)</text>", picture):
        lines[y] = lines.get(y, "") + unescape(text)
    return [*lines.values()]


def main() -> None:
    """Draw all screens."""
    TARGET.mkdir(exist_ok=True)
    todo = [(name, columns) for name in LAUNCHES for columns in WIDTHS]
    with ThreadPoolExecutor() as pool:
        drawn = pool.map(lambda one: draw(*one), todo)
        for (name, columns), picture in zip(todo, drawn, strict=True):
            (TARGET / f"{name}-{columns}.svg").write_text(picture)


if __name__ == "__main__":
    main()
