"""The contract of what gives workers their devices and processors; which ones, a plugin decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager


class Binding(Protocol):
    """What one worker is bound to, from its first instruction on."""

    def applied(self) -> AbstractContextManager[None]:
        """Bind the calling thread while it starts the worker, which inherits that.

        Other threads are not touched, and this one is afterwards what it was before.

        Raises:
            WorkerStartError: the system refuses.
        """

    def bind(self, pid: int) -> None:
        """Bind a worker that another process has started, and that has done nothing yet.

        Raises:
            WorkerStartError: the system refuses.
        """

    def describe(self) -> Mapping[str, str]:
        """What `--dry-run` shows of it, as in `{"cpus": "0-15"}`."""


class Binder(Protocol):
    """Gives the workers of one node their devices and processors, as often as they are started."""

    def plan(self, nprocs: int) -> Mapping[int, Binding]:
        """What each local rank is bound to; ranks that are not are missing.

        Called before the node joins the others, and for every start of its workers.

        Raises:
            UsageError: a worker cannot have its binding.
        """

    def environment(self, local_rank: int, environ: Mapping[str, str]) -> Mapping[str, str]:
        """The variables that show a worker its devices, and may change those that plaunch sets.

        Args:
            local_rank: the worker's.
            environ: what it has otherwise.

        Raises:
            UsageError: its devices are not there.
        """


def is_asked_for(numa_options: object, devices: object, virtual_local_rank: object) -> bool:
    """Whether settings of torchrun's and plaunch's names are about devices or processors."""
    return numa_options is not None or devices is not None or bool(virtual_local_rank)


def default_binder(
    numa_options: object = None, devices: object = None, virtual_local_rank: bool = False
) -> Binder | None:
    """The binder for these settings, if none is given; None if nothing is to be bound.

    Raises:
        UsageError: a setting cannot be used.
    """
    if not is_asked_for(numa_options, devices, virtual_local_rank):
        return None
    from plaunch.parts import BINDER, load_part  # when asked for

    binder: Binder = load_part(BINDER)(numa_options, devices, virtual_local_rank)
    return binder
