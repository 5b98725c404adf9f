"""What the functions behind the names of plugins return, looked at where their plugin is known.

Each raises TypeError for another type; `PluginManager.calling` names the plugin.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from plaunch.process.stopping.signals import SignalPolicy
    from plaunch.rendezvous.api import RendezvousHandler
    from plaunch.restarts.api import RestartPolicy

    T = TypeVar("T")


def checked_count(answer: Any) -> int:
    """The number that a device counter has returned."""
    if not isinstance(answer, bool):
        try:
            return operator.index(answer)
        except TypeError:
            pass
    raise TypeError(f"it returned {answer!r}, which is not a whole number")


def checked_policy(answer: SignalPolicy) -> SignalPolicy:
    """The signal policy that was made."""
    return _with_methods(answer, "signals", "action")


def checked_restart_policy(answer: RestartPolicy) -> RestartPolicy:
    """The restart policy that was made."""
    return _with_methods(answer, "decide")


def checked_handler(answer: RendezvousHandler) -> RendezvousHandler:
    """The rendezvous handler that was made."""
    return _with_methods(answer, "next_rendezvous", "num_nodes_waiting", "get_run_id", "shutdown")


def _with_methods(answer: T, *names: str) -> T:
    for name in names:
        if not callable(getattr(answer, name, None)):
            raise TypeError(f"it returned {answer!r}, which has no method {name!r}")
    return answer
