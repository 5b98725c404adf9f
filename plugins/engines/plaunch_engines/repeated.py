"""Messages that all agents of a job write, of which the user needs one."""

from __future__ import annotations

import re
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Shown = tuple[str, bytes]  # the node, or "" for a message of several nodes; lines

_SECONDS = 10.0  # after which an equal message is a new one
_HOLD = 0.3  # seconds that a message waits for an equal one of another node
_MOST_HELD = 64 << 10  # bytes of a node that wait behind a message
_MOST = 1000  # messages that are remembered
_COLORS = re.compile(rb"\x1b\[[0-9;]*m")
_WORD = b"plaunch:"
_MESSAGE = b"plaunch: "
_CONTINUATION = b"  "
_LINE = re.compile(rb"[^\n]*\n|[^\n]+")


@dataclass(eq=False)
class _Message:
    """A line of a message.

    Args:
        node: that has written it first.
        text: the line.
        at: when it was written.
        until: when it is shown, if no other node writes it before.
        nodes: all nodes that have written it.
    """

    node: str
    text: bytes
    at: float
    until: float
    nodes: set[str]

    def shown(self) -> Shown:
        """Return it with its node, unless several have written it."""
        return (self.node if len(self.nodes) == 1 else "", self.text)


@dataclass(eq=False)
class _NodeLines:
    """Lines of a node that are not shown yet.

    Args:
        waiting: a message that is held back, and what follows.
        size: bytes of it.
        is_in_message: whether the last line belongs to a message.
        begun: a line of a message without its end, which is to come.
    """

    waiting: deque[_Message | bytes] = field(default_factory=deque)
    size: int = 0
    is_in_message: bool = False
    begun: bytes = b""

    def may_be_message(self, line: bytes) -> bool:
        """Whether a line without its end may belong to a message."""
        text = _COLORS.sub(b"", line)
        begin = _CONTINUATION if self.is_in_message else b""
        return text.startswith(_WORD) or bool(begin and text.startswith(begin))


class RepeatedMessages:
    """Merges messages that several agents have written.

    All agents report the same failure and the same restart. It is not that of the node which is the
    first to report it, so such a message is shown once and without a node. Each message waits a
    little for that, and so do the lines of its node behind it. Lines of workers are never merged.

    Args:
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._messages: OrderedDict[bytes, _Message] = OrderedDict()
        self._nodes: dict[str, _NodeLines] = {}
        self._holding: set[str] = set()  # nodes with waiting lines

    def feed(self, node: str, text: bytes) -> Iterator[Shown]:
        """Take lines of stderr; yield what is shown now.

        Args:
            node: the name of the node that has written them.
            text: a block of lines.
        """
        lines = self._nodes.setdefault(node, _NodeLines())
        text, lines.begun = lines.begun + text, b""
        if not (lines.waiting or lines.is_in_message or _WORD in text):
            yield node, text
            return
        for line in _LINE.findall(text):
            if not line.endswith(b"\n") and lines.may_be_message(line):
                lines.begun = line
            else:
                self._add(node, lines, line)
        self._holding.add(node)
        yield from self.due()

    def due(self, *, is_last: bool = False) -> Iterator[Shown]:
        """Yield what has waited long enough, or all of it at the end of the job."""
        if is_last:
            for node, lines in self._nodes.items():
                if lines.begun:
                    self._add(node, lines, lines.begun)
                    self._holding.add(node)
                    lines.begun = b""
        if not self._holding:
            return
        now = self._clock()
        for node in [*self._holding]:
            lines = self._nodes[node]
            has_room = not is_last and lines.size <= _MOST_HELD
            while lines.waiting:
                first = lines.waiting[0]
                if isinstance(first, bytes):
                    text = b"".join(self._take_text(lines))
                    yield node, text
                    continue
                if has_room and now < first.until and len(first.nodes) == 1:
                    break
                lines.waiting.popleft()
                lines.size -= len(first.text)
                yield first.shown()
            if not lines.waiting:
                self._holding.discard(node)

    @staticmethod
    def _take_text(lines: _NodeLines) -> Iterator[bytes]:
        """Remove the text before the next message."""
        while lines.waiting and isinstance(lines.waiting[0], bytes):
            text = lines.waiting[0]
            lines.waiting.popleft()
            lines.size -= len(text)
            yield text

    def _add(self, node: str, lines: _NodeLines, line: bytes) -> None:
        text = _COLORS.sub(b"", line)
        is_more = lines.is_in_message and text.startswith(_CONTINUATION)
        lines.is_in_message = is_more or text.startswith(_MESSAGE)
        if not lines.is_in_message:
            lines.waiting.append(line)
            lines.size += len(line)
            return
        now = self._clock()
        known = self._messages.get(text)
        if known and node not in known.nodes and now - known.at < _SECONDS:
            known.nodes.add(node)
            return
        message = _Message(node, line, now, now + _HOLD, {node})
        self._messages[text] = message
        self._messages.move_to_end(text)
        if len(self._messages) > _MOST:
            self._messages.popitem(last=False)
        lines.waiting.append(message)
        lines.size += len(line)
