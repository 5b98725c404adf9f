"""The event handler `otel`: traces of OpenTelemetry, exported by a separate process."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final

from plaunch.durations import Duration
from plaunch.errors import PluginLoadError, UsageError

if TYPE_CHECKING:
    from plaunch.events import Event
    from plaunch.plugin import PluginContext

MAX_WAIT = 1.5  # seconds; the end of a launch waits for the export no longer
_SHARE = 0.05  # of the duration of the launch; a short launch does not wait long
_MIN_WAIT = 0.1  # seconds; the export takes longer than this


class OtelEventHandler:
    """Sends events to a process that converts them to spans and exports these with the SDK.

    The process starts its work a second after the workers, or at the end of a shorter launch. It
    exits when everything is exported, at most ten seconds after the launcher. So neither the import
    of the SDK nor an exporter that hangs delays the launcher. OpenTelemetry's variables
    (`OTEL_TRACES_EXPORTER`, `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME`, ...) apply.

    Args:
        context: the launch. Its options are `wait` (seconds that the end of the launch waits for
            the export, at most 1.5; by default a twentieth of the duration of the launch, none if
            that is less than two seconds, and 1.5 as the first process of a container) and
            `trace_id` (32 hexadecimal digits; by default that of `TRACEPARENT`, else derived from
            the run id, so that all nodes have the same).
        max_wait: the maximum of `wait`.
        is_idle: whether the process gets idle CPU time only.

    Raises:
        PluginLoadError: the SDK is not installed.
        UsageError: the value of an option is invalid.
    """

    options: Final = frozenset({"trace_id", "wait"})
    creates_nothing = True

    def __init__(
        self, context: PluginContext, *, max_wait: float = MAX_WAIT, is_idle: bool = True
    ) -> None:
        self._began = time.monotonic()
        self._max_wait = max_wait
        self._is_idle = is_idle
        self._wait = _seconds(context.options.get("wait"), max_wait)
        self._trace_id = _trace_id(context.options.get("trace_id"))
        self._lines: list[str] = []
        self.process: subprocess.Popen[str] | None = None
        """The process that exports, once it is started."""
        self.wants_events = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() != "true"
        if self.wants_events and not _is_installed():
            raise PluginLoadError(
                "the event handler 'otel' needs the SDK of OpenTelemetry; "
                "pip install 'plaunch[otel]'"
            )

    def handle(self, event: Event) -> None:
        """Send one event to the process; before the workers are started, keep it."""
        self._lines.append(event.serialize() + "\n")
        if event.name == "plaunch.workers.started" or self.process is not None:
            self._send()

    def close(self) -> None:
        """Let the process finish, and wait for it up to the configured time."""
        process = self._send()
        if process.stdin is not None:
            process.stdin.close()
        wait = self._wait
        if wait is None:
            # All processes of a container end with its first one.
            is_init = os.getpid() == 1
            spent = time.monotonic() - self._began
            wait = self._max_wait if is_init else min(_SHARE * spent, self._max_wait)
            wait = wait if wait >= _MIN_WAIT else 0.0
        try:
            code = process.wait(wait)
        except subprocess.TimeoutExpired:
            process.returncode = 0  # keep Popen from waiting for it: it runs on by itself
            return
        if code:
            raise RuntimeError(f"the export of traces failed (exit code {code})")

    def _send(self) -> subprocess.Popen[str]:
        process = self.process
        if process is None:
            process = self.process = self._start()
        lines, self._lines = self._lines, []
        if process.stdin is not None:
            process.stdin.writelines(lines)
            process.stdin.flush()
        return process

    def _start(self) -> subprocess.Popen[str]:
        # Only an exporter that prints needs the launcher's streams. Otherwise a reader of the
        # launcher's output would have to wait for the export too.
        exporters = os.environ.get("OTEL_TRACES_EXPORTER", "")
        stream = None if "console" in exporters else subprocess.DEVNULL
        process = subprocess.Popen(
            [sys.executable, "-m", "plaunch_events.otel_process", self._trace_id],
            stdin=subprocess.PIPE,
            stdout=stream,
            stderr=None if os.environ.get("PLAUNCH_DEBUG") == "1" else stream,
            text=True,
            encoding="ascii",
            start_new_session=True,
        )
        if self._is_idle:
            _run_when_idle(process.pid)
        return process


def _run_when_idle(pid: int) -> None:
    """Give a process only idle CPU time, where the system permits it.

    With `sched_autogroup_enabled`, the scheduling policy applies only within the session, so the
    nice value of the session's autogroup is set too.
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
    with contextlib.suppress(OSError), open(f"/proc/{pid}/autogroup", "w") as file:
        file.write("19")


def _is_installed() -> bool:
    try:
        return importlib.util.find_spec("opentelemetry.sdk") is not None
    except ModuleNotFoundError:
        return False


def _seconds(text: str | None, max_wait: float = MAX_WAIT) -> float | None:
    if text is None:
        return None
    return Duration(may_be_zero=True, most=max_wait).read(text, "option otel.wait (--event-conf)")


def _trace_id(text: str | None) -> str:
    """The trace id that the user gave, in lower case; empty if none is given."""
    if text is None:
        return ""
    digits = text.strip().lower()
    if len(digits) != 32 or digits.strip("0123456789abcdef") or not digits.strip("0"):
        raise UsageError(
            f"--event-conf has otel.trace_id={text!r}; write 32 hexadecimal digits, not all of "
            "them 0"
        )
    return digits
