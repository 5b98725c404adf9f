"""Messages about processes that survive SIGKILL, or may not be signalled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.process.kernel.proc import describe_process, may_signal, read_state

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plaunch.process.failures.failure import ProcessFailure


def describe_unkillable(
    name: str,
    stuck: Mapping[int, Sequence[int]],
    orphans: Sequence[int],
    failures: Mapping[int, ProcessFailure],
) -> str:
    """Name the processes that are still there after a stop, and say why if the system shows it.

    Args:
        name: what the workers are.
        stuck: process ids by the local rank that they belong to.
        orphans: process ids of unknown workers.
        failures: the failures of workers; the first is the cause of the stop.
    """
    by_owner = [(f"local rank {rank}", pids) for rank, pids in sorted(stuck.items())]
    if orphans:
        by_owner.append(("orphans", orphans))
    named = "; ".join(
        f"{owner}: {', '.join(describe_process(pid) for pid in pids)}" for owner, pids in by_owner
    )
    all_pids = [pid for _, pids in by_owner for pid in pids]
    refused = [pid for pid in all_pids if not may_signal(pid)]
    what = "cannot be ended" if len(refused) == len(all_pids) else "outlive SIGKILL"
    sentences = [f"processes of {name!r} {what}: {named}."]
    if refused:
        pids = ", ".join(map(str, refused))
        sentences.append(
            f"This user may not send signals to pid {pids}, which runs as another user (sudo, "
            "su); the worker must end such processes itself."
        )
    if any(read_state(pid) == "D" for pid in all_pids):
        sentences.append(
            "A process in state D sleeps uninterruptibly in the kernel; this host probably needs a "
            "restart."
        )
    for rank, failure in [*failures.items()][:1]:
        sentences.append(
            f"They were stopped because local rank {rank} (pid {failure.pid}) failed: "
            f"{failure.describe_exit()}."
        )
    return " ".join(sentences)
