"""The rendezvous contract that backends implement; names are torchrun's where it has them."""

from plaunch.errors import RendezvousClosedError as RendezvousClosedError
from plaunch.errors import RendezvousConnectionError as RendezvousConnectionError
from plaunch.errors import RendezvousError as RendezvousError
from plaunch.errors import RendezvousGracefulExitError as RendezvousGracefulExitError
from plaunch.errors import RendezvousStateError as RendezvousStateError
from plaunch.errors import RendezvousTimeoutError as RendezvousTimeoutError
from plaunch.rendezvous.api import ChangeKind as ChangeKind
from plaunch.rendezvous.api import JobFailure as JobFailure
from plaunch.rendezvous.api import JobRendezvous as JobRendezvous
from plaunch.rendezvous.api import JobRound as JobRound
from plaunch.rendezvous.api import JobSettings as JobSettings
from plaunch.rendezvous.api import MembershipChange as MembershipChange
from plaunch.rendezvous.api import ObservableRendezvous as ObservableRendezvous
from plaunch.rendezvous.api import RendezvousHandler as RendezvousHandler
from plaunch.rendezvous.api import RendezvousHandlerCreator as RendezvousHandlerCreator
from plaunch.rendezvous.api import RendezvousInfo as RendezvousInfo
from plaunch.rendezvous.api import RendezvousParameters as RendezvousParameters
from plaunch.rendezvous.api import RendezvousStoreInfo as RendezvousStoreInfo
from plaunch.rendezvous.api import Store as Store
from plaunch.rendezvous.api import Verdict as Verdict
from plaunch.rendezvous.api import WorldRanks as WorldRanks
from plaunch.rendezvous.endpoint import parse_rendezvous_endpoint as parse_rendezvous_endpoint
from plaunch.rendezvous.ports import HeldPort as HeldPort
from plaunch.rendezvous.store import Connect as Connect
from plaunch.rendezvous.store import RendezvousStore as RendezvousStore
