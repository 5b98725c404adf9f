"""The doctor: checks of what usually breaks on a node, before a job finds out.

A check is a function that takes a `DoctorContext` and gives findings. Plugins add their own with
the hook `plaunch_doctor_checks`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch._lazy import attach

if TYPE_CHECKING:
    from plaunch.doctor.checks import CHECKS as CHECKS
    from plaunch.doctor.context import DoctorContext as DoctorContext
    from plaunch.doctor.findings import Check as Check
    from plaunch.doctor.findings import Finding as Finding
    from plaunch.doctor.findings import Status as Status
    from plaunch.doctor.running import run_checks as run_checks

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        ".checks": "CHECKS",
        ".context": "DoctorContext",
        ".findings": "Check Finding Status",
        ".running": "run_checks",
    },
)
