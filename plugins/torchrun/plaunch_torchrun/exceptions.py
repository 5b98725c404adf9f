"""Exceptions that are instances of plaunch's and torch's classes, for `except` clauses with either.

This never imports torch. A caller can only name torch's classes if their module is imported, so the
type is added when an exception passes, if the module is imported then.
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
    """Add torch's type to exceptions of plaunch that pass."""
    try:
        yield
    except PlaunchError as error:
        add_torch_type(error)
        raise


def add_torch_type(error: PlaunchError) -> None:
    """Make `error` also an instance of torch's class of the same name, if that is imported.

    It stays the same object, with its traceback and its previous classes.
    """
    own_class = type(error)
    for base in own_class.__mro__:
        if base.__name__ not in HOMES or not base.__module__.startswith("plaunch."):
            continue
        torch_class = getattr(sys.modules.get(HOMES[base.__name__]), base.__name__, None)
        if torch_class is None or isinstance(error, torch_class):
            return
        error.__class__ = _combined_class(own_class, torch_class)
        return


def _combined_class(
    own_class: type[PlaunchError], torch_class: type[Exception]
) -> type[PlaunchError]:
    def reduce(error: PlaunchError) -> object:
        # The process that unpickles it may not have torch.
        error.__class__ = own_class
        try:
            return error.__reduce__()
        finally:
            error.__class__ = combined

    names = {"__module__": own_class.__module__, "__doc__": own_class.__doc__, "__reduce__": reduce}
    combined = type(own_class.__name__, (own_class, torch_class), names)
    return combined
