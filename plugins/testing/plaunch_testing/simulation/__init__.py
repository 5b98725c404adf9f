"""Whole jobs in virtual time: the code of plaunch, in a world of which every part is simulated.

The store, the workers' processes, the hosts, their clocks and their network are simulated; agents,
rendezvous and restart policies are the real ones. A run is decided by a script of faults and by a
seed, so it can be repeated. Needs greenlet (extra `simulation`), and an interpreter of its own:

    from plaunch_testing.simulation import Simulator  # before any import of plaunch

    simulator = Simulator()
    for seed in range(100):
        report = simulator.run_seed(seed)
        if report.findings:
            print(report.describe())
"""

from __future__ import annotations

from plaunch_testing.simulation.hub import SimulationError as SimulationError
from plaunch_testing.simulation.runs import RunReport as RunReport
from plaunch_testing.simulation.runs import Simulator as Simulator
from plaunch_testing.simulation.script import Choices as Choices
from plaunch_testing.simulation.script import FaultKind as FaultKind
from plaunch_testing.simulation.script import InjectedFault as InjectedFault
from plaunch_testing.simulation.script import Script as Script
from plaunch_testing.simulation.script import StoreKind as StoreKind
from plaunch_testing.simulation.script import make_script as make_script

__all__ = [
    "Choices",
    "FaultKind",
    "InjectedFault",
    "RunReport",
    "Script",
    "SimulationError",
    "Simulator",
    "StoreKind",
    "make_script",
]
