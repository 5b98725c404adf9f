"""The event handler for OpenTelemetry: traces, which a process of their own makes and exports."""

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

MAX_WAIT = 1.5  # seconds that the end of a launch waits for the export at most
_SHARE = 0.05  # of what the launch has taken; who ran for a moment does not wait for long
_LEAST_WAIT = 0.1  # seconds; the export takes longer, so that less would be for nothing


class OtelEventHandler:
    """Hands events to a process that makes spans of them with the SDK's own exporters.

    The process begins to work a second after the workers, or at the end of a launch that was
    shorter, and ends by itself when all is exported, at most ten seconds after the launcher.
    The SDK's import and an exporter that hangs take none of the launcher's time.
    OpenTelemetry's variables (`OTEL_TRACES_EXPORTER`, `OTEL_EXPORTER_OTLP_ENDPOINT`,
    `OTEL_SERVICE_NAME`, ...) apply.

    Args:
        context: the launch. Its options are `wait` (how many seconds the end of the launch waits
            for the export, at most 1.5; by default a twentieth of what the launch has taken,
            nothing after less than two seconds, and 1.5 for the first process of a container) and
            `trace_id` (32 hexadecimal digits; by default that of `TRACEPARENT`, else made of the
            run id, so that nodes have the same).

    Raises:
        PluginLoadError: the SDK is not installed.
        UsageError: an option has no such value.
    """

    options: Final = frozenset({"trace_id", "wait"})

    def __init__(self, context: PluginContext) -> None:
        self._began = time.monotonic()
        self._wait = _seconds(context.options.get("wait"))
        self._trace_id = _trace_id(context.options.get("trace_id"))
        self._is_off = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
        self._lines: list[str] = []
        self._process: subprocess.Popen[str] | None = None
        if not self._is_off and not _is_installed():
            raise PluginLoadError(
                "the event handler 'otel' needs the SDK of OpenTelemetry; "
                "pip install 'plaunch[otel]'"
            )

    def handle(self, event: Event) -> None:
        """Pass one event on."""
        if self._is_off:
            return
        self._lines.append(event.serialize() + "\n")
        if event.name == "plaunch.workers.started" or self._process is not None:
            self._send()

    def close(self) -> None:
        """Let the process come to its end, and wait for it as long as is agreed."""
        if self._is_off:
            return
        process = self._send()
        if process.stdin is not None:
            process.stdin.close()
        wait = self._wait
        if wait is None:
            # With the first process of a container, all others end.
            is_init = os.getpid() == 1
            spent = time.monotonic() - self._began
            wait = MAX_WAIT if is_init else min(_SHARE * spent, MAX_WAIT)
            wait = wait if wait >= _LEAST_WAIT else 0.0
        try:
            code = process.wait(wait)
        except subprocess.TimeoutExpired:
            process.returncode = 0  # it is left to itself, and no concern of ours any more
            return
        if code:
            raise RuntimeError(f"the export of traces failed (exit code {code})")

    def _send(self) -> subprocess.Popen[str]:
        process = self._process
        if process is None:
            process = self._process = self._start()
        lines, self._lines = self._lines, []
        if process.stdin is not None:
            process.stdin.writelines(lines)
            process.stdin.flush()
        return process

    def _start(self) -> subprocess.Popen[str]:
        # Only an exporter that prints needs our streams. Whoever else kept them open would let
        # the reader of our output wait for the export.
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
        _give_way(process.pid)
        return process


def _give_way(pid: int) -> None:
    """Let a process take no time from workers, nor from the launcher, where the system can.

    Where the kernel shares time between sessions first (`sched_autogroup_enabled`), the policy of a
    process counts within its session only.
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


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    return Duration(may_be_zero=True, most=MAX_WAIT).read(text, "option otel.wait (--event-conf)")


def _trace_id(text: str | None) -> str:
    """The id that the user gave, as it is handed on; empty for none."""
    if text is None:
        return ""
    digits = text.strip().lower()
    if len(digits) != 32 or digits.strip("0123456789abcdef") or not digits.strip("0"):
        raise UsageError(
            f"--event-conf has otel.trace_id={text!r}; write 32 hexadecimal digits, not all of "
            "them 0"
        )
    return digits
