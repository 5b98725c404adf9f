"""How workers failed."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import field
from typing import TYPE_CHECKING, Any

from plaunch.numbers import name_ranks
from plaunch.parts import ENRICH_SIGNAL_FAILURE, load_part
from plaunch.process.failures.error_file import (
    ErrorFileError,
    read_error_file,
    text_of,
    text_of_error,
    timestamp_of,
    traceback_of,
)
from plaunch.values import Record, Value, plain_dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch.process.failures.consequences import Consequence
    from plaunch.process.failures.tracebacks import Raised

NOT_AVAILABLE = "<N/A>"  # torch's word for a missing error file and for "no signal"
_NO_MESSAGE = "<NONE>"
_UNCAUGHT = 1  # what Python exits with after an exception that nobody caught

# Signals that end a worker without a word, from outside or by a fault of its own code. SIGABRT is
# not among them: it is how C++ code gives up when something else has failed.
_SUDDEN_ENDS = frozenset(
    -signal.Signals[f"SIG{name}"] for name in ("KILL", "TERM", "SEGV", "BUS", "ILL", "FPE")
)
_SEEN_LATE = 1.0  # seconds that such an end may be seen after its peers have noticed it
# Seconds by which another failure may begin after one that only says that a peer is gone, and still
# be its cause: as long as an interpreter may take to end after its exception.
CONSEQUENCE_WINDOW = 10.0
_LONGEST_LINE = 300  # characters of what an exception says, in a headline


def _host() -> str:
    return os.uname().nodename


@plain_dataclass
class ProcessFailure(Record):
    """One worker that failed by itself; the first seven fields are torch's.

    It is created when the exit is seen, and reads the worker's error file then. A missing or
    unreadable error file is no error here: `message` says what is known.

    Args:
        local_rank: the worker's local rank.
        pid: the worker's process id.
        exitcode: its exit code, or -n if signal n ended it.
        error_file: where it was told to report its exception; `"<N/A>"` once it turned out that
            there is no such file.
        error_file_data: what the file says.
        message: the file's message, a string or torch's nested object; without a file, one
            sentence about the exit.
        timestamp: seconds since the epoch with fractions, from the file or else the time at which
            the exit was seen.
        last_lines: the last lines that it wrote to stderr, oldest first.
        global_rank: its rank in the job, where known.
        host: the name of its host.
        oom_killed: whether the kernel's out-of-memory killer ended it.
        hung: whether it still ran, and the job was found to hang; `message` says where.
        log_files: the files that its stdout and stderr went to, where there are any.
        lifetime: seconds between its start and the failure; None if they are not known.
        is_shown: whether the launcher's own stderr has shown the last lines, on this node.
        reason: who sent the signal that ended it and why, if that went through the launcher.
    """

    local_rank: int
    pid: int
    exitcode: int
    error_file: str
    error_file_data: dict[str, Any] = field(init=False)
    message: str | dict[str, Any] = field(init=False)
    timestamp: float = field(init=False)
    last_lines: list[str] = field(default_factory=list, kw_only=True)
    global_rank: int | None = field(default=None, kw_only=True)
    host: str = field(default_factory=_host, kw_only=True)
    oom_killed: bool = field(default=False, kw_only=True)
    hung: bool = field(default=False, kw_only=True)
    log_files: list[str] = field(default_factory=list, kw_only=True)
    lifetime: float | None = field(default=None, kw_only=True)
    is_shown: bool = field(default=False, kw_only=True)
    reason: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        self._place: str | None = None
        self._consequence: Consequence | None = None
        self._is_consequence_set = False
        self.timestamp = time.time()
        self.error_file_data = {"message": _NO_MESSAGE}
        self.message = ""
        if self.error_file and os.path.isfile(self.error_file):  # torch allows None
            try:
                self.error_file_data = read_error_file(self.error_file)
                self.message = self.error_file_data["message"]
                written_at = os.stat(self.error_file).st_mtime
                self.timestamp = timestamp_of(self.error_file_data, written_at, self.timestamp)
            except (ErrorFileError, OSError) as error:
                self.message = f"{self._exit_alone()}; {error}"
        else:
            self.error_file = NOT_AVAILABLE
        if not self.message:
            self.message = self.exit_sentence()
            if self.exitcode >= 0:
                self.error_file_data["errorTraits"] = {
                    "category": "system_terminated_error",
                    "retryability": "False",
                }

    @property
    def has_reply(self) -> bool:
        """Whether the worker itself said, in its error file, why it failed."""
        return self.error_file_data.get("message") not in ("", {}, _NO_MESSAGE)

    @property
    def text(self) -> str:
        """The error itself, without the traceback: `"ValueError: bad shape"`."""
        return text_of(self.message)

    @property
    def traceback(self) -> str:
        """The Python traceback that the worker recorded; empty if there is none."""
        return traceback_of(self.message)

    @property
    def began(self) -> float:
        """When it began, as far as that can be told, in seconds since the epoch.

        A worker that a signal killed is seen to be gone a little after its connections broke. Its
        peers may have reported that as an exception meanwhile, which is no cause; so such an end is
        taken to be a second older than it was seen.
        """
        if self.has_reply or self.exitcode not in _SUDDEN_ENDS:
            return self.timestamp
        return self.timestamp - _SEEN_LATE

    @property
    def order(self) -> float:
        """`began`, or later if it only says that a peer is gone; the cause has the smallest."""
        return self.began + (CONSEQUENCE_WINDOW if self.is_consequence else 0.0)

    @property
    def raised(self) -> Raised:
        """The exception that ended the worker, read from its traceback; empty if none did."""
        from plaunch.process.failures import tracebacks  # failures only

        if self.has_reply:
            return tracebacks.raised_in_reply(self.text, self.traceback)
        return tracebacks.raised_in_output(self.last_lines, self.exitcode)

    @property
    def place(self) -> str:
        """The last line of the user's code that was running, as `train.py:39`; empty if unknown.

        The user's code is all but Python's standard library, installed packages and torch. For a
        failure of another node, it is set to what that node has read.
        """
        return self.raised.place if self._place is None else self._place

    @place.setter
    def place(self, place: str) -> None:
        self._place = place

    @property
    def consequence(self) -> Consequence | None:
        """What it, or a direct cause of it, says of a peer that is gone or silent; None if nothing.

        Such a failure is a consequence of another one, of a lost node or of an early end. For a
        failure of another node, it is set to what that node has read.
        """
        return self._consequence if self._is_consequence_set else self._read_consequence()

    @consequence.setter
    def consequence(self, consequence: Consequence | None) -> None:
        self._consequence, self._is_consequence_set = consequence, True

    def _read_consequence(self) -> Consequence | None:
        if self.hung or self.oom_killed or (self.global_rank or 0) < 0:
            return None
        if not self.has_reply and self.exitcode not in (_UNCAUGHT, -signal.SIGABRT):
            return None
        from plaunch.process.failures import consequences, tracebacks  # failures only

        chain = (
            tracebacks.chain_in_reply(self.text, self.traceback)
            if self.has_reply
            else tracebacks.chain_in_output(self.last_lines, self.exitcode)
        )
        return next(filter(None, map(consequences.find_consequence, chain)), None)

    @property
    def is_consequence(self) -> bool:
        """Whether it only says that a peer is gone or silent, and so is not a cause."""
        return self.consequence is not None

    @property
    def brief(self) -> str:
        """What happened, in one line: the exception with its text, or how the worker ended."""
        how = self.text if (self.global_rank or 0) < 0 else self.describe_exit()
        if self.reason:
            how += f": {self.reason}"
        return _one_line(self.raised.text or how)

    @property
    def verb(self) -> str:
        """What it did, for a sentence about it: `failed`, or `lost a peer` if that is gone."""
        found = self.consequence
        return "lost a peer" if found and found.is_gone else "failed"

    @property
    def headline(self) -> str:
        """The same with the user's line: `ValueError: bad shape (train.py:39)`."""
        brief, place, raised, found = self.brief, self.place, self.raised, self.consequence
        # What only a cause of the exception says would be wrong beside its type.
        if found and (not raised.text or found.words in raised.text):
            brief = f"{raised.exception or self.describe_exit()}: {_one_line(found.words)}"
        return f"{brief} ({place})" if place else brief

    def enrich(self, text: str) -> str:
        """`text`, which is about this failure, as a report shows it.

        If a signal ended the worker, the site's error handler may add what it knows, such as a
        fault of the device. It is asked on the worker's own host, where the logs are.
        """
        if self.exitcode >= 0 or self.host != _host():
            return text
        try:
            return str(load_part(ENRICH_SIGNAL_FAILURE)(text, self.error_file))
        except Exception as error:  # noqa: BLE001 - it must not hide the failure
            import logging  # rare

            logging.getLogger("plaunch").warning(
                "the error handler's maybe_enrich_signal_failure_message failed (%s: %s); the "
                "report has the message without its additions",
                type(error).__name__,
                text_of_error(error),
            )
            return text

    def signal_name(self) -> str:
        """The signal that ended the worker, as `"SIGSEGV"`; `"<N/A>"` if none did."""
        return _signal_name(-self.exitcode) or NOT_AVAILABLE

    def timestamp_isoformat(self) -> str:
        """The time of the failure on this host's clock, as `2026-01-31_08:15:00.250000`.

        `"<N/A>"` if it is none that a date can have.
        """
        from datetime import datetime  # failures only

        try:
            return datetime.fromtimestamp(self.timestamp).isoformat(sep="_")
        except (ValueError, OverflowError, OSError):
            return NOT_AVAILABLE

    def describe_exit(self) -> str:
        """How the worker ended, in words: `"exit code 17"`, `"killed by SIGSEGV (signal 11)"`."""
        if self.hung:
            return "stopped, because the job hung"
        if self.oom_killed:
            return "killed by the kernel's out-of-memory killer (SIGKILL)"
        return describe_exit(self.exitcode)

    def exit_sentence(self) -> str:
        """The exit in torch's words; the `message` of a worker that said nothing itself."""
        if self.exitcode < 0:
            return self._exit_alone()
        if self.error_file == NOT_AVAILABLE:
            return f"{self._exit_alone()} and wrote no error file"
        return f"{self._exit_alone()} and wrote no message to its error file"

    def _exit_alone(self) -> str:
        if self.exitcode < 0:
            return f"Signal {-self.exitcode} ({self.signal_name()}) received by PID {self.pid}"
        return f"PID {self.pid} ended with exit code {self.exitcode}"


@plain_dataclass
class EarlierAttempt(Value):
    """An attempt of the job whose failure was followed by a restart.

    Args:
        attempt: its number.
        cause: what failed first, and how, in one line.
        seconds: how long its workers had run by then.
    """

    attempt: int
    cause: str
    seconds: float


def first_failure(failures: Mapping[int, ProcessFailure]) -> tuple[int, ProcessFailure]:
    """The failure that is the cause, and its rank: the first, but consequences after all others.

    Of equal times, it is the one seen first.
    """
    rank = min(failures, key=lambda rank: failures[rank].order)
    return rank, failures[rank]


def describe_exit(exitcode: int) -> str:
    """An exit code in words; negative is a signal. A shell's 128+n is spelt out as well."""
    if exitcode < 0:
        name = _signal_name(-exitcode)
        return f"killed by {name} (signal {-exitcode})" if name else f"killed by signal {-exitcode}"
    name = _signal_name(exitcode - 128)
    return f"exit code {exitcode} (128 + {name})" if name else f"exit code {exitcode}"


def describe_early_ends(ended: Mapping[int, float], until: float, host: str = "") -> str:
    """`rank 1 had ended with exit code 0, 12 s before`; empty if none had.

    Workers that wait for such a rank hang, or fail because it is gone.

    Args:
        ended: when workers ended that have succeeded, by global rank, in seconds since the epoch.
        until: when the others failed, or were seen to hang. What ended later is left out.
        host: where they were; empty if that need not be said.
    """
    from plaunch.durations import format_duration  # failures only

    ago = {rank: until - when for rank, when in ended.items() if when <= until}
    if not ago:
        return ""
    seconds = [round(s, 1 if s < 10 else None) for s in (min(ago.values()), max(ago.values()))]
    spans = dict.fromkeys(format_duration(each, " ") for each in seconds)
    where = f" on {host}" if host else ""
    return f"{name_ranks(ago)}{where} had ended with exit code 0, {' to '.join(spans)} before"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""


def _one_line(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 3]}..."
