"""How many descriptors this process may have, which is no business of its workers."""

from __future__ import annotations

import contextlib
import functools
import resource


class DescriptorLimit:
    """The limit of this process on open files, which may be raised, and what it was before."""

    def __init__(self) -> None:
        self._before: tuple[int, int] | None = None

    def raise_to_most(self) -> int:
        """Raise the soft limit to the hard one; the soft limit from now on."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
                self._before = self._before or (soft, hard)
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    def give_back(self, pid: int) -> None:
        """Let a child that was just started have the limit as it was before it was raised.

        Programs that use `select`, or close all descriptors that there might be, rely on a low one.
        """
        if self._before is not None and hasattr(resource, "prlimit"):
            with contextlib.suppress(OSError, ValueError):  # the child may have ended
                resource.prlimit(pid, resource.RLIMIT_NOFILE, self._before)


@functools.cache
def descriptor_limit() -> DescriptorLimit:
    """The limit of this process."""
    return DescriptorLimit()


def raise_descriptor_limit() -> int:
    """Let this process open as many files as the system allows, but not its workers.

    Returns:
        How many that are.
    """
    return descriptor_limit().raise_to_most()
