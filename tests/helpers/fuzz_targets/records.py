"""Records of the membership, as another node, another version or another program wrote them."""

from __future__ import annotations

from plaunch.errors import RendezvousStateError
from plaunch_membership.records import RecordCodec

from helpers import mutations
from helpers.fuzz_targets.reading import Choices, check_equal, check_message

MAX_LENGTH = 4096
WORDS = tuple(
    f'"{word}"'.encode()
    for word in (
        "v", "node", "host", "ticket", "round", "version", "phase", "world", "verdict", "failures",
        "groups", "event", "kind", "reason", "leader", "is_final", "detail", "rank", "began",
        "running", "over", "failed", "formed", "summary", "exit_code", "role", "address", "port",
    )
)  # fmt: skip
_KEY = mutations._KEY
_KINDS = sorted(mutations.READERS)


def check(data):
    """Read a record with one of its readers, which also write it again."""
    choices = Choices(data)
    kind = choices.one_of(_KINDS)
    token = choices.one_of((None, None, None, b"t" * 16))
    codec = RecordCodec(mutations.RUN_ID, token)
    try:
        record = codec.decode(_KEY, choices.rest)
    except RendezvousStateError as error:
        check_message(str(error))
        return
    raw = dict(record)
    again = codec.decode(_KEY, codec.encode(_KEY, raw))
    check_equal(dict(again), raw, "a record is another one when it is read again")
    try:
        mutations.READERS[kind](record)
    except RendezvousStateError as error:
        check_message(str(error))
