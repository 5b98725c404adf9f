"""The output of teed streams, piece by piece."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch_logs_default.streams.lines import MAX_LINE, LinesToConsole

if TYPE_CHECKING:
    from collections.abc import Callable


class _Console:
    is_terminal = False

    def __init__(self) -> None:
        self.shown = b""

    def put(self, data: bytes, owner: object, *, shown: int = 0) -> None:
        del owner
        self.shown += data[shown:]


class Teed(LinesToConsole):
    """A stream on a console that is not a terminal."""

    def __init__(self, make_prefix: Callable[[], bytes], max_line: int = MAX_LINE) -> None:
        self._screen = _Console()
        super().__init__(make_prefix, self._screen, max_line=max_line)  # type: ignore[arg-type]

    def feed(self, data: bytes) -> bytes:
        """Write `data`; return the shown part."""
        before = len(self._screen.shown)
        self.write(data)
        return self._screen.shown[before:]

    def end(self) -> bytes:
        """End the stream; return the rest that is shown."""
        before = len(self._screen.shown)
        self.close()
        return self._screen.shown[before:]
