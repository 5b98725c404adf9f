"""The contract of binders, which give workers their devices and processors. Plugins have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager


class Binding(Protocol):
    """The devices and processors of one worker, from its first instruction on."""

    def applied(self) -> AbstractContextManager[None]:
        """Bind the calling thread while it starts the worker, which inherits the binding.

        Other threads are not affected. At the end of the block, the thread has its old binding.

        Raises:
            WorkerStartError: the system refuses.
        """

    def bind(self, pid: int) -> None:
        """Bind a worker that another process has just started, before the worker does anything.

        Raises:
            WorkerStartError: the system refuses.
        """

    def describe(self) -> Mapping[str, str]:
        """What `--dry-run` shows, as in `{"cpus": "0-15"}`."""


class Binder(Protocol):
    """Gives the workers of one node their devices and processors, at each start."""

    def plan(self, nprocs: int) -> Mapping[int, Binding]:
        """The bindings by local rank; ranks that are not bound are missing.

        Called before the node joins the others, and at every start of its workers, on the thread
        that starts them.

        Raises:
            UsageError: a worker cannot have its binding.
        """

    def environment(self, local_rank: int, environ: Mapping[str, str]) -> Mapping[str, str]:
        """The variables that show a worker its devices; they may override those that plaunch sets.

        Args:
            local_rank: the local rank of the worker.
            environ: its other variables.

        Raises:
            UsageError: it has devices that do not exist.
        """


def is_asked_for(numa_options: object, devices: object, virtual_local_rank: object) -> bool:
    """Whether any of these settings asks for devices or processors."""
    return numa_options is not None or devices is not None or bool(virtual_local_rank)


def default_binder(
    numa_options: object = None, devices: object = None, virtual_local_rank: bool = False
) -> Binder | None:
    """The binder for these settings; None if they ask for no binding.

    Raises:
        UsageError: a setting cannot be used.
    """
    if not is_asked_for(numa_options, devices, virtual_local_rank):
        return None
    from plaunch.parts import BINDER, load_part  # only where workers are bound

    binder: Binder = load_part(BINDER)(numa_options, devices, virtual_local_rank)
    return binder
