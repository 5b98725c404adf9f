"""What the checks of plaunch's own may use in addition to settings and files."""

from __future__ import annotations

from dataclasses import dataclass, field

from plaunch.doctor import DoctorContext
from plaunch.rendezvous import BackendTraits

from plaunch_doctor.machine import Machine
from plaunch_doctor.network import Network


@dataclass(frozen=True)
class NodeContext(DoctorContext):
    """A context that also answers questions about this node.

    Args:
        network: answers questions about names, addresses and ports.
        machine: answers questions about limits, disks, programs and time.
        traits: what the chosen backend declares, if it is known.
    """

    network: Network = field(default_factory=Network)
    machine: Machine = field(default_factory=Machine)
    traits: BackendTraits = field(default_factory=BackendTraits)
