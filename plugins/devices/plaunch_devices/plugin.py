"""The hooks of this plugin, loaded when a launch or the doctor needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from plaunch.plugin import hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from plaunch.doctor import DoctorContext, Finding
    from plaunch.plugin import PluginContext
    from plaunch.process import Binder


@hookimpl
def plaunch_worker_binder(context: PluginContext) -> Binder | None:
    """Create the binder for --devices, --virtual-local-rank and --numa-binding."""
    from plaunch_devices.binder import create_binder  # launches

    settings, options = cast("Mapping[str, Any]", context.settings), context.options
    return create_binder(
        options.get("numa_binding") or settings.get("numa_options"),
        options.get("devices") or settings.get("devices"),
        bool(options.get("virtual_local_rank") or settings.get("virtual_local_rank")),
    )


@hookimpl
def plaunch_doctor_checks(context: DoctorContext) -> Iterable[Finding]:
    """Check the accelerators of this node."""
    from plaunch_devices.doctor import check_accelerators  # the doctor

    return check_accelerators(context)
