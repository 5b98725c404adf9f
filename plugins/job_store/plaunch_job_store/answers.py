"""The answer to a request, which may be the answer to those of many clients."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from plaunch_job_store import frames
from plaunch_job_store.frames import MessageKind

if TYPE_CHECKING:
    from plaunch_job_store.frames import Result

# The length, the kind and the number of a REPLY. Its results are the same for all who get them.
_HEAD = struct.Struct(">IBQ")
_HEAD_BYTES = _HEAD.size - 4  # counted by the length


class Answer:
    """The results of a request.

    Args:
        results: of its operations.
        is_for_many: whether many clients wait for them. They are then encoded once, and the bytes
            are kept.
    """

    __slots__ = ("_encoded", "results")

    def __init__(self, results: list[Result], *, is_for_many: bool = False) -> None:
        self.results = results
        self._encoded = frames.encode_results(results) if is_for_many else None

    @property
    def value(self) -> bytes:
        """The first result, if it is a value."""
        first = self.results[0]
        return first if isinstance(first, bytes) else b""

    def with_more(self, results: list[Result]) -> Answer:
        """Return the answer with these results behind its own."""
        return Answer([*self.results, *results])

    def reply(self, number: int) -> bytes:
        """Return the frame that answers the request with this number."""
        encoded = self._encoded or frames.encode_results(self.results)
        return _HEAD.pack(_HEAD_BYTES + len(encoded), MessageKind.REPLY, number) + encoded
