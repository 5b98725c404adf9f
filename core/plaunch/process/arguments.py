"""Checks and converts the arguments and variables that callers give for each local rank."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from plaunch.errors import RankMappingError, UsageError


def validate_ranks(what: str, by_rank: Mapping[int, Any], nprocs: int) -> None:
    """Check that `by_rank` names exactly the local ranks 0 to `nprocs` - 1.

    Raises:
        RankMappingError: it does not; the message lists the missing and the surplus ranks.
    """
    if not isinstance(by_rank, Mapping):
        raise RankMappingError(
            f"{what} is {by_rank!r}; it must map each local rank to its own value, as in {{0: ...}}"
        )
    expected = range(nprocs)
    missing = [rank for rank in expected if rank not in by_rank]
    surplus = sorted((rank for rank in by_rank if rank not in expected), key=repr)
    if missing or surplus:
        found = " and ".join(
            f"{label} {', '.join(map(repr, ranks))}"
            for label, ranks in (("lacks", missing), ("has", surplus))
            if ranks
        )
        raise RankMappingError(
            f"{what} must name the local ranks 0 to {nprocs - 1} and no others; it {found}"
        )


def worker_args(args: Mapping[int, Any]) -> dict[int, tuple[Any, ...]]:
    """The arguments by local rank as tuples; a bare string or bytes object is one argument.

    Raises:
        RankMappingError: `args` is empty, or does not name exactly the local ranks 0 to n-1.
        UsageError: a rank's arguments are neither a sequence nor a string.
    """
    validate_ranks("args", args, _size(args))
    if not args:
        raise RankMappingError("args names no local rank, so there is no worker to start")
    return {rank: _argument_tuple(rank, args[rank]) for rank in range(len(args))}


def _size(value: object) -> int:
    return len(value) if isinstance(value, Mapping) else 0


def _argument_tuple(rank: int, value: Any) -> tuple[Any, ...]:
    if isinstance(value, (str, bytes)):
        return (value,)
    if isinstance(value, Iterable):
        return tuple(value)
    raise UsageError(
        f"args[{rank}] is {value!r}; write the arguments of a worker as a tuple, ({value!r},)"
    )


def worker_envs(
    envs: Mapping[int, Mapping[str, Any]] | None, nprocs: int
) -> dict[int, dict[str, str]]:
    """A copy of the variables by local rank with all values as strings; None means no variables.

    Raises:
        RankMappingError: `envs` does not name exactly the local ranks 0 to `nprocs` - 1.
        UsageError: a name or a value cannot be given to a process.
    """
    if envs is None:
        return {rank: {} for rank in range(nprocs)}
    validate_ranks("envs", envs, nprocs)
    return {
        rank: {
            _variable_name(rank, name): variable_value(rank, name, value)
            for name, value in (envs[rank] or {}).items()
        }
        for rank in range(nprocs)
    }


def _variable_name(rank: int, name: Any) -> str:
    if not isinstance(name, str) or not name or "=" in name or "\0" in name:
        raise UsageError(
            f"envs[{rank}] has the name {name!r}, which cannot be used in an environment"
        )
    return name


def variable_value(rank: int, name: str, value: Any) -> str:
    """The value of a variable as a string; bytes and paths are decoded.

    Raises:
        UsageError: the value is None or has a NUL character.
    """
    if value is None:
        raise UsageError(f"envs[{rank}][{name!r}] is None; leave the variable out or give a value")
    text = os.fsdecode(value) if isinstance(value, (bytes, os.PathLike)) else str(value)
    if "\0" in text:
        raise UsageError(
            f"envs[{rank}][{name!r}] has a NUL character, which cannot be used in an environment"
        )
    return text
