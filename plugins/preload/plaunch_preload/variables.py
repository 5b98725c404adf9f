"""Variables that preloaded modules have read, and that a worker has with another value."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch_preload.fork_server import Imports

# C libraries read these when they are loaded; Python does not see that.
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
# What plaunch sets for each worker, or anew in each round; no fork server can have it.
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
# What plaunch sets for the fork server in another way, on purpose.
_OWN = frozenset(("PLAUNCH_JOBS", "PLAUNCH_LAUNCHER"))


class Unlike(NamedTuple):
    """A variable with which workers would not be like fresh ones.

    Args:
        name: the variable.
        reader: who has read it, for a message.
        is_common: whether all workers of the round have the same value.
    """

    name: str
    reader: str
    is_common: bool


def find_unlike(
    env: Mapping[str, str], imports: Imports, envs: Mapping[int, Mapping[str, str]]
) -> Unlike | None:
    """The first variable, in order of names, that spoils the workers; None if none does.

    Args:
        env: the environment of the fork server.
        imports: what was read meanwhile.
        envs: the environments of the workers, by local rank.
    """
    if imports.readers_of_all:
        return Unlike("", imports.readers_of_all[0], is_common=False)
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
            return Unlike(name, reader, is_common=len(values) == 1)
    return None
