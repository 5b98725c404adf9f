"""The exception of a job whose workers failed."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from plaunch.errors import ExitCode, PlaunchError, UsageError, text_of_error
from plaunch.parts import CONSOLE_REPORT, FAILURE_REPORT, load_part
from plaunch.process.failure import NOT_AVAILABLE, first_failure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plaunch.process.failure import EarlierAttempt, ProcessFailure


class ChildFailedError(PlaunchError):
    """Workers failed, and the job with them; the text is the failure report.

    Args:
        name: what was run.
        failures: the workers that failed by themselves, by global rank, in the order in which
            their exits were seen.
        stopped: the exit codes of the workers that plaunch stopped because of them, by global rank.
        early_ends: the workers that had succeeded before the first failure, one line for each node
            (see `describe_early_ends`).
        first: the rank that failed first, if the nodes of a job have agreed on it; None means the
            earliest failure. A negative rank means the launcher of a node.
        counted: the number of other failures by description; jobs with very many workers do not
            report each of them.
        no_restart: why a restart policy refused another attempt; empty if none did.
        earlier: the previous attempts in order, as far as this node knows them.

    `exit_code` is the first failing worker's own code, or 128+n if signal n ended it.

    Raises:
        UsageError: `failures` is empty, or `first` is not among them.
    """

    def __init__(
        self,
        name: str,
        failures: dict[int, ProcessFailure],
        *,
        stopped: Mapping[int, int] | None = None,
        early_ends: Sequence[str] = (),
        first: int | None = None,
        counted: Mapping[str, int] | None = None,
        no_restart: str = "",
        earlier: Sequence[EarlierAttempt] = (),
    ) -> None:
        if not failures:
            raise UsageError(f"a ChildFailedError about {name!r} needs at least one failure")
        if first is not None and first not in failures:
            raise UsageError(f"rank {first} is not among the failures of {name!r}")
        self.name = name
        self.failures = failures
        self.stopped = dict(stopped or {})
        self.early_ends = list(early_ends)
        self.counted = dict(counted or {})
        self.no_restart = no_restart
        self.earlier = list(earlier)
        self._first = first
        code = self.get_first_failure()[1].exitcode
        # A class constant in other errors; here each instance has the code of its worker.
        self.exit_code = (128 - code if code < 0 else code) or ExitCode.INTERNAL  # type: ignore[misc]
        super().__init__(self.format_msg())

    def __reduce__(self) -> tuple[object, ...]:
        rebuild = functools.partial(
            ChildFailedError,
            stopped=self.stopped,
            early_ends=self.early_ends,
            first=self._first,
            counted=self.counted,
            no_restart=self.no_restart,
            earlier=self.earlier,
        )
        return rebuild, (self.name, self.failures)

    def get_first_failure(self) -> tuple[int, ProcessFailure]:
        """Return the global rank that failed first, and how; of equal times, the one seen first."""
        if self._first is not None:
            return self._first, self.failures[self._first]
        return first_failure(self.failures)

    def format_msg(self, boarder_delim: str = "", section_delim: str = "") -> str:
        """Return the failure report.

        torch's two keywords add rules: lines of `boarder_delim` around the report, and of
        `section_delim` between its parts. By default there are none.
        """
        return self._report(FAILURE_REPORT, border=boarder_delim, section=section_delim)

    def for_console(self) -> str:
        """Return the message on the launcher's own console, below the output of the workers.

        It is shorter than the report, and does not repeat what the console has shown.
        """
        return self._report(CONSOLE_REPORT)

    def _report(self, default: str, **form: str) -> str:
        try:
            report: str = load_part(default)(self, **form)
        except Exception as error:  # noqa: BLE001 - it must not hide the failure
            return self._short_report(error)
        return report

    def _short_report(self, error: Exception) -> str:
        """Return the failures in brief, and why there is no full report."""
        first, root = self.get_first_failure()
        others = [(rank, failure) for rank, failure in self.failures.items() if rank != first]
        lines = [f"{self.name} FAILED", f"First failure: {_line(first, root)}"]
        if self.no_restart:
            lines.append(f"No restart: {self.no_restart}")
        if root.error_file != NOT_AVAILABLE:
            lines.append(f"Error file: {root.error_file!r}")
        lines += [f"Other failure: {_line(rank, failure)}" for rank, failure in others]
        lines += [f"and {count} more: {words}" for words, count in self.counted.items()]
        lines.append(f"No full report ({type(error).__name__}: {text_of_error(error)})")
        return "\n".join(lines)


def _line(rank: int, failure: ProcessFailure) -> str:
    who = f"rank {rank}" if rank >= 0 else "the launcher"
    pid = f", pid {failure.pid}" if failure.pid else ""  # of a lost node, none is known
    return f"{who} on host {failure.host!r}{pid}: {failure.describe_exit()}"
