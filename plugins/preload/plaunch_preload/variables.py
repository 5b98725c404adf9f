"""Finds variables that preloaded modules have read, and that have another value for a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch_preload.fork_server import Imports

# C libraries read these when they are loaded, which Python cannot detect.
_NATIVE = (
    "BLIS_",
    "CUDA_MODULE_",
    "GLIBC_TUNABLES",
    "GOMP_",
    "GOTO_",
    "HSA_",
    "KMP_",
    "LC_",
    "LD_",
    "MALLOC_",
    "MKL_",
    "OMP_",
    "OPENBLAS_",
    "PYTHON",
    "VECLIB_",
)
# Variables that plaunch sets per worker or per round.
SET_FOR_WORKERS = frozenset(
    (
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "LOCAL_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "PLAUNCH_ROUND",
        "RANK",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "TORCHELASTIC_ERROR_FILE",
        "TORCHELASTIC_RESTART_COUNT",
        "WORLD_SIZE",
    )
)
# Variables that plaunch sets differently for the fork server.
_OWN = frozenset(("PLAUNCH_JOBS", "PLAUNCH_LAUNCHER"))


class VariableMismatch(NamedTuple):
    """A variable by which forked workers could differ from fresh ones.

    Args:
        name: the variable; empty if all variables were read.
        reader: the code that has read it, for a message.
        is_common: whether all workers of the round have the same value.
    """

    name: str
    reader: str
    is_common: bool


def find_mismatch(
    env: Mapping[str, str], imports: Imports, envs: Mapping[int, Mapping[str, str]]
) -> VariableMismatch | None:
    """Return the first such variable by name; None if there is none.

    Args:
        env: the environment of the fork server.
        imports: the result of its imports.
        envs: the environments of the workers, by local rank.
    """
    if imports.readers_of_all:
        return VariableMismatch("", imports.readers_of_all[0], is_common=False)
    names = {name for worker in envs.values() for name in worker} | env.keys()
    for name in sorted(names - _OWN):
        values = {worker.get(name) for worker in envs.values()}
        if values == {env.get(name)}:
            continue
        reader = imports.variables.get(name, "")
        for prefix, prefix_reader in imports.prefixes.items():
            if not reader and name.startswith(prefix):
                reader = prefix_reader
        if not reader and name.startswith(_NATIVE):
            reader = "native code"
        if reader:
            return VariableMismatch(name, reader, is_common=len(values) == 1)
    return None
