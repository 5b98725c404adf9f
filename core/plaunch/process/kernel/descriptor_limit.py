"""Raises the limit of this process on open files, but not that of its workers."""

from __future__ import annotations

import contextlib
import functools
import resource


class DescriptorLimit:
    """The limit of this process on open files, and its value before it was raised."""

    def __init__(self) -> None:
        self._before: tuple[int, int] | None = None

    def raise_to_most(self) -> int:
        """Raise the soft limit to the hard one, and return it."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
                self._before = self._before or (soft, hard)
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    def give_back(self, pid: int) -> None:
        """Restore the original limit in a child that was just started.

        Programs that use `select`, or close all possible descriptors, rely on a low limit.
        """
        if self._before is not None and hasattr(resource, "prlimit"):
            with contextlib.suppress(OSError, ValueError):  # the child may have ended
                resource.prlimit(pid, resource.RLIMIT_NOFILE, self._before)


@functools.cache
def descriptor_limit() -> DescriptorLimit:
    """The limit of this process."""
    return DescriptorLimit()


def raise_descriptor_limit() -> int:
    """Allow this process, but not its workers, as many open files as the system permits.

    Returns:
        The new limit.
    """
    return descriptor_limit().raise_to_most()
