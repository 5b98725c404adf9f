"""The checks that come with plaunch, in the order in which they are reported."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from plaunch_doctor.clock import check_clock
from plaunch_doctor.disks import check_log_folder, check_temporary_folder
from plaunch_doctor.endpoint import check_endpoint, check_ports
from plaunch_doctor.installation import check_interpreter, check_versions
from plaunch_doctor.leftovers import check_leftovers
from plaunch_doctor.limits import (
    check_core_files,
    check_locked_memory,
    check_open_files,
    check_processes,
    check_processors,
)
from plaunch_doctor.memory import check_memory, check_shared_memory
from plaunch_doctor.naming import check_host_name, check_interfaces

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch_doctor.running import Check

CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        "interpreter": check_interpreter,
        "versions": check_versions,
        "host name": check_host_name,
        "interfaces": check_interfaces,
        "endpoint": check_endpoint,
        "ports": check_ports,
        "shared memory": check_shared_memory,
        "memory": check_memory,
        "processors": check_processors,
        "open files": check_open_files,
        "processes": check_processes,
        "core files": check_core_files,
        "locked memory": check_locked_memory,
        "clock": check_clock,
        "log folder": check_log_folder,
        "temporary files": check_temporary_folder,
        "leftovers": check_leftovers,
    }
)
