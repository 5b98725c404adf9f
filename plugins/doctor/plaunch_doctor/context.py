"""The context of plaunch's own checks: settings and files, the network and the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from plaunch.doctor import DoctorContext, Finding
from plaunch.rendezvous import BackendTraits

from plaunch_doctor.machine import Machine
from plaunch_doctor.network import Network


@dataclass(frozen=True)
class NodeContext(DoctorContext):
    """A doctor context with access to this node.

    Args:
        network: resolves names, connects to addresses, tries ports.
        machine: reads limits, disks, programs and the time.
        traits: the traits of the selected backend; the defaults if it is unknown.
    """

    network: Network = field(default_factory=Network)
    machine: Machine = field(default_factory=Machine)
    traits: BackendTraits = field(default_factory=BackendTraits)


# A check of plaunch's own; may take a few seconds.
NodeCheck = Callable[[NodeContext], Iterable[Finding]]
