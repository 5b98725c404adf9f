"""Lines of the nodes of a job with fixed ranks."""

from __future__ import annotations

from dataclasses import asdict

from plaunch.errors import RendezvousError
from plaunch_rendezvous_static.messages import read_answer, read_introduction, to_line

from helpers.fuzz_targets import Finding
from helpers.fuzz_targets.reading import Choices, check_equal, check_message

MAX_LENGTH = 1024
WORDS = tuple(
    f'"{word}"'.encode()
    for word in (
        "run_id", "nodes", "rank", "role", "local_world_size", "host", "ranks", "refused",
        "timeout", "group_rank", "world_size", "role_rank",
    )
)  # fmt: skip


def check(data):
    """Read an introduction or an answer; what is neither is the documented error."""
    choices = Choices(data)
    if choices.number(2):
        try:
            node = read_introduction(choices.rest)
        except ValueError as error:
            check_message(str(error), 5000)
            return
        check_message(node.host, 400)
        if not 0 < node.local_world_size <= 1 << 20:
            raise Finding(f"{node}")
        again = read_introduction(to_line(asdict(node)))
        check_equal(again, node, "an introduction is another one when it is read again")
    else:
        try:
            ranks = read_answer(choices.rest)
        except RendezvousError as error:
            check_message(str(error), 5000)
            return
        again = read_answer(
            to_line({"ranks": ranks._asdict() if hasattr(ranks, "_asdict") else vars(ranks)})
        )
        check_equal(again, ranks, "ranks are other ones when they are read again")
