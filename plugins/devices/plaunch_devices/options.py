"""The options for the devices that workers see, and the CPUs they run on."""

from __future__ import annotations

from plaunch.options import Option

PLUGIN = "plaunch_devices.plugin"
KNOWN_AS = "the assignment of devices"
SETTINGS = ("devices", "numa_options", "virtual_local_rank")
# Counts the devices of a name that is not a device counter.
UNKNOWN_DEVICES = "plaunch_devices.torch_child:count_private_use"


def _devices(text: str) -> list[str]:
    from plaunch_devices.choice import parse_devices  # when it is given

    return parse_devices(text)


OPTIONS = (
    Option(
        ("--devices",),
        "indices of the devices that the workers of this node may see, as in 2,4-7; starts one "
        "worker per device, unless --nproc-per-node is given",
        metavar="LIST",
        read=_devices,
        is_shared=True,
        fill="plaunch_devices.choice:fill_in",
    ),
    Option(
        ("--virtual-local-rank",),
        "show each worker only its own device, as device 0; LOCAL_RANK is 0 for all workers",
        read=None,
    ),
    Option(
        ("--numa-binding",),
        "bind each worker to CPUs near its device: node, socket, exclusive or core-complex",
        metavar="MODE",
        choices=("node", "socket", "exclusive", "core-complex"),
    ),
)
