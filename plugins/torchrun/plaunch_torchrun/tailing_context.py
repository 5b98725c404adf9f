"""The base class of contexts written for torchrun: it shows the files of teed streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.process import LogsDest, PContext, SupervisedContext

if TYPE_CHECKING:
    import signal

    from plaunch.process import Streams


class TailingContext(PContext):
    """A context whose workers write teed streams to files, as torchrun's do.

    It shows these files on the console. torchrun calls it `PContext`. plaunch's own contexts
    count as its subclasses; the output of their workers passes through the launcher.
    """

    _tails: Streams | None = None

    def start(self) -> None:
        """Start all workers, and show what they write; see `PContext.start`."""
        super().start()
        dest = self._logs_dest
        if not (dest.tee_stdouts or dest.tee_stderrs):
            return
        shown = LogsDest(
            tee_stdouts=dest.tee_stdouts,
            tee_stderrs=dest.tee_stderrs,
            filtered_stdout=dest.filtered_stdout,
            filtered_stderr=dest.filtered_stderr,
        )
        with self._closed_after_errors():
            self._tails = self._open_streams(
                shown, capture_stderr=False, keeps_daemons=False, before=None
            )
            self._tails.start()

    def close(self, death_sig: signal.Signals | None = None, timeout: float | None = None) -> None:
        """Stop the workers, and show the rest of their output; see `PContext.close`."""
        try:
            super().close(death_sig, timeout)
        finally:
            if self._tails is not None:
                self._tails.finish()


TailingContext.register(SupervisedContext)  # type: ignore[type-abstract]
