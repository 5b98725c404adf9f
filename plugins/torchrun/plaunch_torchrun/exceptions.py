"""Exceptions that are plaunch's and torch's at once, so that `except` clauses with either work.

torch is never imported for it. A caller can only name torch's classes if torch's module of them has
been imported; so that is looked at when an exception passes, and if it has not been, the exception
stays plaunch's alone.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from plaunch.errors import PlaunchError

if TYPE_CHECKING:
    from collections.abc import Iterator

_ERRORS = "torch.distributed.elastic.multiprocessing.errors"
_PROCESSES = "torch.distributed.elastic.multiprocessing.api"
_RENDEZVOUS = "torch.distributed.elastic.rendezvous.api"
HOMES = {
    "ChildFailedError": _ERRORS,
    "SignalException": _PROCESSES,
    "RendezvousError": _RENDEZVOUS,
    "RendezvousClosedError": _RENDEZVOUS,
    "RendezvousConnectionError": _RENDEZVOUS,
    "RendezvousGracefulExitError": _RENDEZVOUS,
    "RendezvousStateError": _RENDEZVOUS,
    "RendezvousTimeoutError": _RENDEZVOUS,
}


@contextlib.contextmanager
def torch_typed() -> Iterator[None]:
    """Let exceptions of plaunch's pass as instances of torch's classes as well."""
    try:
        yield
    except PlaunchError as error:
        add_torch_type(error)
        raise


def add_torch_type(error: PlaunchError) -> None:
    """Make `error` an instance of torch's class of its name as well, if torch's is imported.

    It stays the object that it is, with its traceback, and an instance of all it was before.
    """
    ours = type(error)
    for base in ours.__mro__:
        if base.__name__ not in HOMES or not base.__module__.startswith("plaunch."):
            continue
        theirs = getattr(sys.modules.get(HOMES[base.__name__]), base.__name__, None)
        if theirs is None or isinstance(error, theirs):
            return
        error.__class__ = _both(ours, theirs)
        return


def _both(ours: type[PlaunchError], theirs: type[Exception]) -> type[PlaunchError]:
    def reduce(error: PlaunchError) -> object:
        # Whoever unpickles it may have no torch.
        error.__class__ = ours
        try:
            return error.__reduce__()
        finally:
            error.__class__ = both

    names = {"__module__": ours.__module__, "__doc__": ours.__doc__, "__reduce__": reduce}
    both = type(ours.__name__, (ours, theirs), names)
    return both
