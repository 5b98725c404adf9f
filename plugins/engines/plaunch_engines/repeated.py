"""Messages that all agents of a job write, of which the user needs one."""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_SECONDS = 10.0  # after which an equal message is a new one
_MOST = 1000  # messages that are remembered
_COLORS = re.compile(rb"\x1b\[[0-9;]*m")
_MESSAGE = b"plaunch: "
_CONTINUATION = b"  "
# Where the time went: that of one node is enough, although others differ by tenths of a second.
_ACCOUNT = re.compile(rb"plaunch: (?:restarted in|this launch took) ")


class RepeatedMessages:
    """Recognizes messages of an agent that another agent has written shortly before.

    All agents report the same failure and the same restart. Lines of workers are never recognized.

    Args:
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._messages: OrderedDict[bytes, tuple[float, set[str]]] = OrderedDict()
        self._in_message: set[str] = set()  # nodes whose last line belongs to a message

    def has(self, node: str, line: bytes) -> bool:
        """Whether another node has written this line of stderr; remembers it.

        Args:
            node: the name of the node that has written it.
            line: with its newline.
        """
        text = _COLORS.sub(b"", line)
        is_more = node in self._in_message and text.startswith(_CONTINUATION)
        if not text.startswith(_MESSAGE) and not is_more:
            self._in_message.discard(node)
            return False
        self._in_message.add(node)
        account = _ACCOUNT.match(text)
        return self._is_known(account.group() if account else text, node)

    def _is_known(self, message: bytes, node: str) -> bool:
        now = self._clock()
        written, nodes = self._messages.get(message, (now, set()))
        if nodes and node not in nodes and now - written < _SECONDS:
            nodes.add(node)
            return True
        self._messages[message] = now, {node}
        self._messages.move_to_end(message)
        if len(self._messages) > _MOST:
            self._messages.popitem(last=False)
        return False
