"""Exchanging data over a store of torch, as in torchrun's `elastic.utils.store`."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from plaunch.durations import PATIENCE, bounded
from plaunch.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MAX_NAMED = 16  # missing ranks in a message


@contextlib.contextmanager
def store_timeout(store: Any, timeout: float) -> Iterator[None]:
    """Set the timeout of `store`, in seconds, until the block ends."""
    PATIENCE.check(timeout, "timeout")
    before = store.timeout
    store.set_timeout(timedelta(seconds=bounded(timeout)))
    try:
        yield
    finally:
        store.set_timeout(before)


def get_all(store: Any, rank: int, prefix: str, world_size: int) -> list[bytes]:
    """Wait for and return the values of `<prefix>0` to `<prefix><world_size - 1>`.

    Rank 0, which may host the store, waits until all ranks have read them.
    """
    values: list[bytes] = store.multi_get([f"{prefix}{index}" for index in range(world_size)])
    last = _arrive(store, world_size, f"{prefix}/finished")
    if rank == 0:
        store.wait([last])
    return values


def synchronize(
    store: Any,
    data: bytes,
    rank: int,
    world_size: int,
    key_prefix: str,
    timeout: float = 300,
) -> list[bytes]:
    """Exchange `data`: each rank gets the data of all ranks, in their order.

    A `key_prefix` can be used only once. `timeout` is in seconds.
    """
    with store_timeout(store, timeout):
        store.set(f"{key_prefix}{rank}", data)
        return get_all(store, rank, key_prefix, world_size)


def barrier(
    store: Any,
    world_size: int,
    key_prefix: str,
    barrier_timeout: float = 300,
    rank: int | None = None,
    rank_tracing_decoder: Callable[[int], str] | None = None,
    trace_timeout: float = 10,
) -> None:
    """Wait until `world_size` callers have called this.

    Args:
        store: the shared store.
        world_size: the number of callers.
        key_prefix: the prefix of its keys; it can be used only once.
        barrier_timeout: the timeout in seconds.
        rank: the rank of this caller; with it, the timeout error of rank 0 names missing ranks.
        rank_tracing_decoder: returns the name of a rank, such as its host; needs `rank`.
        trace_timeout: seconds for which rank 0 looks for missing ranks after a timeout.

    Raises:
        UsageError: there is a decoder, but no `rank`.
        torch.distributed.DistStoreError: the timeout expired.
    """
    if rank is None and rank_tracing_decoder is not None:
        raise UsageError("rank_tracing_decoder names ranks, so rank must be given as well")
    with store_timeout(store, barrier_timeout):
        last = _arrive(store, world_size, key_prefix)
        if rank is not None:
            store.set(f"{key_prefix}/here/{rank}", "")
        try:
            store.wait([last])
        except Exception as error:
            if rank != 0:
                raise
            missing = _missing(store, world_size, key_prefix, trace_timeout)
            named = ", ".join(map(rank_tracing_decoder or str, missing[:_MAX_NAMED]))
            raise type(error)(
                f"not all of {world_size} are at the barrier {key_prefix!r} after "
                f"{barrier_timeout:g} s; missing: {named or 'unknown ranks'}"
            ) from error


def _arrive(store: Any, world_size: int, key_prefix: str) -> str:
    """Count this caller; return the key that the last one sets."""
    last = f"{key_prefix}/last_member"
    if store.add(f"{key_prefix}/num_members", 1) == world_size:
        store.set(last, "")
    return last


def _missing(store: Any, world_size: int, key_prefix: str, timeout: float) -> list[int]:
    missing: list[int] = []
    for rank in range(1, world_size):
        # Wait only for the first missing rank; the others had the same time.
        patience = timedelta(milliseconds=1) if missing else timedelta(seconds=bounded(timeout))
        try:
            store.wait([f"{key_prefix}/here/{rank}"], patience)
        except Exception:  # noqa: BLE001 - of torch, which is not imported here
            missing.append(rank)
    return missing
