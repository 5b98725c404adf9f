"""The failures of workers."""

from __future__ import annotations

import math
import os
import signal
import time
from dataclasses import field
from typing import TYPE_CHECKING, Any

from plaunch.errors import text_of_error
from plaunch.numbers import name_ranks
from plaunch.parts import ENRICH_SIGNAL_FAILURE, load_part
from plaunch.values import Value, plain_dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch.process.consequences import Consequence
    from plaunch.process.tracebacks import Raised

NOT_AVAILABLE = "<N/A>"  # torch's word for a missing error file and for "no signal"
_NO_MESSAGE = "<NONE>"
_UNCAUGHT = 1  # Python's exit code after an uncaught exception

# Signals that end a worker without a message, sent from outside or caused by a fault of its code.
# Not SIGABRT, with which C++ code gives up after another failure.
_SUDDEN_ENDS = frozenset(
    -signal.Signals[f"SIG{name}"] for name in ("KILL", "TERM", "SEGV", "BUS", "ILL", "FPE")
)
_SEEN_LATE = 1.0  # seconds by which peers may notice such an exit before the launcher does
# Seconds by which a failure may begin after another one that only says that a peer is gone, and
# still be its cause: an interpreter may take as long to exit after its exception.
CONSEQUENCE_WINDOW = 10.0
_LONGEST_LINE = 300  # characters of the text of an exception in a headline


def _host() -> str:
    return os.uname().nodename


@plain_dataclass
class ProcessFailure(Value):
    """One worker that failed by itself; the first seven fields are torch's.

    Created without `error_file_data`, it reads the worker's error file. Without a readable one,
    `message` describes the exit. `dataclasses.replace` does not read the file again.

    Args:
        local_rank: the worker's local rank.
        pid: the worker's process id.
        exitcode: its exit code, or -n if signal n ended it.
        error_file: the file for its exception; `"<N/A>"` if the worker has not written it.
        error_file_data: the content of the file; `{"message": ...}` for a failure that was reported
            in another way.
        message: the file's message, a string or torch's nested object; without one, a sentence,
            by default about the exit.
        timestamp: seconds since the epoch with fractions, from the file or else the time at which
            the exit was seen.
        last_lines: the last lines of its stderr, oldest first.
        global_rank: its rank in the job, where known.
        host: the name of its host.
        oom_killed: whether the kernel's out-of-memory killer ended it.
        hung: whether it was still running when the job was found to hang; `message` says where.
        log_files: the files with its stdout and stderr, if there are any.
        lifetime: seconds between its start and the failure; None if unknown.
        is_shown: whether the launcher's own stderr has shown the last lines, on this node.
        program: the path of the program that it ran; empty if that is unknown, as on another node.
        shared_memory: the free and the total space of /dev/shm when its exit was seen, in bytes;
            known after a SIGBUS.
        reason: who sent the signal that ended it and why, if that went through the launcher.
        known_place: `place`, if another node has read it; empty to read it here.
        known_consequence: `consequence`, if another node has read it, with empty words if it found
            none; None to read it here.
    """

    local_rank: int
    pid: int
    exitcode: int
    error_file: str
    error_file_data: dict[str, Any] = field(default_factory=dict, kw_only=True)
    message: str | dict[str, Any] = field(default="", kw_only=True)
    timestamp: float = field(default=math.nan, kw_only=True)
    last_lines: list[str] = field(default_factory=list, kw_only=True)
    global_rank: int | None = field(default=None, kw_only=True)
    host: str = field(default_factory=_host, kw_only=True)
    oom_killed: bool = field(default=False, kw_only=True)
    hung: bool = field(default=False, kw_only=True)
    log_files: list[str] = field(default_factory=list, kw_only=True)
    lifetime: float | None = field(default=None, kw_only=True)
    is_shown: bool = field(default=False, kw_only=True)
    program: str = field(default="", kw_only=True)
    shared_memory: tuple[int, int] | None = field(default=None, kw_only=True)
    reason: str = field(default="", kw_only=True)
    known_place: str = field(default="", kw_only=True)
    known_consequence: Consequence | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        facts = vars(self)  # which can still change here
        if math.isnan(self.timestamp):
            facts["timestamp"] = time.time()
        if self.error_file_data:
            facts["error_file"] = self.error_file or NOT_AVAILABLE
            facts["message"] = self.message or self.error_file_data["message"]
        else:
            self._read_error_file(facts)

    def _read_error_file(self, facts: dict[str, Any]) -> None:
        data: dict[str, Any] = {"message": _NO_MESSAGE}
        message: str | dict[str, Any] = ""
        if self.error_file and os.path.isfile(self.error_file):  # torch allows None
            from plaunch.process.error_file import ErrorFileError, read_error_file, timestamp_of

            try:
                data = read_error_file(self.error_file)
                message = data["message"]
                written_at = os.stat(self.error_file).st_mtime
                facts["timestamp"] = timestamp_of(data, written_at, self.timestamp)
            except (ErrorFileError, OSError) as error:
                message = self.message or f"{self._exit_alone()}; {error}"
        else:
            facts["error_file"] = NOT_AVAILABLE
        if not message:
            message = self.message or self.exit_sentence()
            if self.exitcode >= 0:
                data["errorTraits"] = {
                    "category": "system_terminated_error",
                    "retryability": "False",
                }
        facts.update(error_file_data=data, message=message)

    @property
    def has_reply(self) -> bool:
        """Whether the worker reported in its error file why it failed."""
        return self.error_file_data.get("message") not in ("", {}, _NO_MESSAGE)

    @property
    def text(self) -> str:
        """The error itself, without the traceback: `"ValueError: bad shape"`."""
        from plaunch.process.error_file import text_of  # failures only

        return text_of(self.message)

    @property
    def traceback(self) -> str:
        """The Python traceback that the worker recorded; empty if there is none."""
        from plaunch.process.error_file import traceback_of  # failures only

        return traceback_of(self.message)

    @property
    def began(self) -> float:
        """The estimated time of the failure, in seconds since the epoch.

        The exit of a worker that a signal killed is seen a little after its connections broke. Its
        peers may have reported an exception meanwhile, which is not the cause. So such an exit
        counts as a second older than it was seen.
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
        from plaunch.process import tracebacks  # failures only

        if self.has_reply:
            return tracebacks.raised_in_reply(self.text, self.traceback)
        return tracebacks.raised_in_output(self.last_lines, self.exitcode)

    @property
    def place(self) -> str:
        """The last line of the user's code that was running, as `train.py:39`; empty if unknown.

        The user's code is everything except Python's standard library, installed packages and
        torch.
        """
        return self.known_place or self.raised.place

    @property
    def consequence(self) -> Consequence | None:
        """What the failure, or a direct cause of it, says about a peer; None if nothing.

        Such a failure is the consequence of another one, of a lost node or of an early exit.
        """
        known = self.known_consequence
        if known is None:
            return self._read_consequence()
        return known if known.words else None

    def _read_consequence(self) -> Consequence | None:
        if self.hung or self.oom_killed or (self.global_rank or 0) < 0:
            return None
        if not self.has_reply and self.exitcode not in (_UNCAUGHT, -signal.SIGABRT):
            return None
        from plaunch.process import consequences, tracebacks  # failures only

        chain = (
            tracebacks.chain_in_reply(self.text, self.traceback)
            if self.has_reply
            else tracebacks.chain_in_output(self.last_lines, self.exitcode)
        )
        return next(filter(None, map(consequences.find_consequence, chain)), None)

    @property
    def is_consequence(self) -> bool:
        """Whether it only says that a peer is gone or silent, so that it is not a cause."""
        return self.consequence is not None

    @property
    def brief(self) -> str:
        """What happened, in one line: the exception with its text, or how the worker ended."""
        how = self.text if (self.global_rank or 0) < 0 else self.describe_exit()
        if self.reason:
            how += f": {self.reason}"
        elif self.exitcode == -signal.SIGABRT and not (self.has_reply or self.hung):
            from plaunch.process.tracebacks import abort_in_output  # failures only

            if said := abort_in_output(self.last_lines):
                how += f": {said}"
        return _one_line(self.raised.text or how)

    @property
    def verb(self) -> str:
        """The verb for a sentence about the worker: `failed`, or `lost a peer`."""
        found = self.consequence
        return "lost a peer" if found and found.is_gone else "failed"

    @property
    def headline(self) -> str:
        """What happened, with the user's line: `ValueError: bad shape (train.py:39)`."""
        brief, place, raised, found = self.brief, self.place, self.raised, self.consequence
        # Do not repeat the words of a consequence beside the exception's type.
        if found and (not raised.text or found.words in raised.text):
            brief = f"{raised.exception or self.describe_exit()}: {_one_line(found.words)}"
        return f"{brief} ({place})" if place else brief

    def enrich(self, text: str) -> str:
        """`text`, a text about this failure, with additions of the site's error handler.

        Called only if a signal ended the worker, and on the worker's own host, where the logs are.
        The handler may add, for instance, a fault of the device.
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
        """The name of the signal that ended the worker; `"<N/A>"` if none did."""
        return _signal_name(-self.exitcode) or NOT_AVAILABLE

    def timestamp_isoformat(self) -> str:
        """The time of the failure on this host's clock, as `2026-01-31_08:15:00.250000`.

        `"<N/A>"` if it is outside of the range of dates.
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
        """The exit in torch's words; the `message` of a worker without an error file."""
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
        cause: the first failure, in one line.
        seconds: how long its workers had run by then.
    """

    attempt: int
    cause: str
    seconds: float


def first_failure(failures: Mapping[int, ProcessFailure]) -> tuple[int, ProcessFailure]:
    """The rank and the failure that is the cause: the first one that is not a consequence.

    Of equal times, it is the one seen first. A consequence is only later by `CONSEQUENCE_WINDOW`.
    """
    rank = min(failures, key=lambda rank: failures[rank].order)
    return rank, failures[rank]


def describe_failure(rank: int, failure: ProcessFailure) -> str:
    """Which worker failed, and how, in one line, as all nodes of a job report it."""
    how = failure.text.partition("\n")[0] if failure.hung else failure.headline
    return f"rank {rank} on {failure.host} (pid {failure.pid}) {failure.verb}: {how}"


def describe_exit(exitcode: int) -> str:
    """An exit code in words; negative means a signal. A shell's 128+n is explained as well."""
    if exitcode < 0:
        name = _signal_name(-exitcode)
        return f"killed by {name} (signal {-exitcode})" if name else f"killed by signal {-exitcode}"
    name = _signal_name(exitcode - 128)
    return f"exit code {exitcode} (128 + {name})" if name else f"exit code {exitcode}"


def describe_early_ends(ended: Mapping[int, float], until: float, host: str = "") -> str:
    """`rank 1 had ended with exit code 0, 12 s before`; empty if no worker had.

    Workers that wait for such a rank hang, or fail because it is gone.

    Args:
        ended: when the workers that succeeded ended, by global rank, in seconds since the epoch.
        until: when the others failed, or were found to hang. Later exits are left out.
        host: their host; empty to leave it out.
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
    from plaunch.texts import printable_output  # failures only

    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return printable_output(line, _LONGEST_LINE)
