"""The rendezvous contract that backends implement; names are torchrun's where it has them.

Every public name loads on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.lazy import attach

if TYPE_CHECKING:
    from plaunch.errors import RendezvousClosedError as RendezvousClosedError
    from plaunch.errors import RendezvousConnectionError as RendezvousConnectionError
    from plaunch.errors import RendezvousError as RendezvousError
    from plaunch.errors import RendezvousGracefulExitError as RendezvousGracefulExitError
    from plaunch.errors import RendezvousStateError as RendezvousStateError
    from plaunch.errors import RendezvousTimeoutError as RendezvousTimeoutError
    from plaunch.rendezvous.api import ENDING_DELAY as ENDING_DELAY
    from plaunch.rendezvous.api import ChangeKind as ChangeKind
    from plaunch.rendezvous.api import MembershipChange as MembershipChange
    from plaunch.rendezvous.api import ObservableRendezvous as ObservableRendezvous
    from plaunch.rendezvous.api import RendezvousHandler as RendezvousHandler
    from plaunch.rendezvous.api import RendezvousHandlerCreator as RendezvousHandlerCreator
    from plaunch.rendezvous.api import RendezvousInfo as RendezvousInfo
    from plaunch.rendezvous.api import RendezvousStoreInfo as RendezvousStoreInfo
    from plaunch.rendezvous.api import Store as Store
    from plaunch.rendezvous.api import WorldRanks as WorldRanks
    from plaunch.rendezvous.backend import TOKEN_OPTION as TOKEN_OPTION
    from plaunch.rendezvous.backend import TOKEN_VARIABLE as TOKEN_VARIABLE
    from plaunch.rendezvous.backend import BackendTraits as BackendTraits
    from plaunch.rendezvous.backend import JobSettings as JobSettings
    from plaunch.rendezvous.backend import NodeSettings as NodeSettings
    from plaunch.rendezvous.backend import RendezvousParameters as RendezvousParameters
    from plaunch.rendezvous.backend import backend_traits as backend_traits
    from plaunch.rendezvous.backend import traits_of as traits_of
    from plaunch.rendezvous.job import JobOutcome as JobOutcome
    from plaunch.rendezvous.job import JobRendezvous as JobRendezvous
    from plaunch.rendezvous.job import JobRound as JobRound
    from plaunch.rendezvous.job import SharedTexts as SharedTexts
    from plaunch.rendezvous.job import Verdict as Verdict
    from plaunch.rendezvous.job import world_ranks as world_ranks

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "plaunch.errors": (
            "RendezvousClosedError RendezvousConnectionError RendezvousError "
            "RendezvousGracefulExitError RendezvousStateError RendezvousTimeoutError"
        ),
        ".api": (
            "ChangeKind ENDING_DELAY MembershipChange ObservableRendezvous RendezvousHandler "
            "RendezvousHandlerCreator RendezvousInfo RendezvousStoreInfo Store WorldRanks"
        ),
        ".job": "JobOutcome JobRendezvous JobRound SharedTexts Verdict world_ranks",
        ".backend": (
            "BackendTraits JobSettings NodeSettings RendezvousParameters TOKEN_OPTION "
            "TOKEN_VARIABLE backend_traits traits_of"
        ),
    },
)
