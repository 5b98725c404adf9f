"""Selecting the devices that workers see: `--devices` and `--virtual-local-rank`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.errors import UsageError
from plaunch.numbers import digits, quote

from plaunch_devices.kernel import (
    AMD,
    HABANA,
    INTEL,
    LISTERS,
    NVIDIA,
    has_slices,
    list_nvidia_files,
)
from plaunch_devices.visible import entries_of, select_devices

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from plaunch.cli import Arguments
    from plaunch.plugin import PluginManager

_MANY = 4096  # devices of a node

_CUDA = "CUDA_VISIBLE_DEVICES"
_HIP = "HIP_VISIBLE_DEVICES"

# The variables that the software of each vendor reads; the first one that is set is used.
_LISTS = {
    NVIDIA: (_CUDA,),
    AMD: (_HIP, _CUDA),
    INTEL: ("ZE_AFFINITY_MASK",),
    HABANA: ("HABANA_VISIBLE_MODULES",),
}
# Vendors whose devices are not listed by this package.
_OTHERS = (
    ("dev/davinci[0-9]*", "ASCEND_RT_VISIBLE_DEVICES"),
    ("dev/cambricon_dev[0-9]*", "MLU_VISIBLE_DEVICES"),
    ("dev/mtgpu.[0-9]*", "MUSA_VISIBLE_DEVICES"),
)


def fill_in(args: Arguments, manager: PluginManager) -> str:
    """Set the number of workers to that of the devices, unless it is given."""
    del manager
    if not args.is_given("nproc_per_node"):
        args.give("nproc_per_node", str(len(args.devices)), "--devices")
    return ""


def parse_devices(text: str) -> list[str]:
    """Parse device numbers and ranges such as `"2,4-7"`; keeps their order.

    Raises:
        UsageError: the text names no device, a device twice, or is malformed.
    """
    devices: list[str] = []
    for part in (piece.strip() for piece in text.split(",")):
        low, dash, high = (piece.strip() for piece in part.partition("-"))
        first = digits(low)
        last = digits(high) if dash else first
        if first is None or last is None:
            raise UsageError(
                f"{quote(part)} in {quote(text)} is not a device number; write numbers from 0 up "
                "and ranges of them, as in 2,4-7"
            )
        if first > last:
            raise UsageError(
                f"{part!r} in {quote(text)} is in descending order; write {last}-{first}"
            )
        if last - first >= _MANY:
            raise UsageError(
                f"{part!r} in {quote(text)} is too large; no node has more than {_MANY} devices"
            )
        devices += map(str, range(first, last + 1))
    return check_devices(devices)


def check_devices(devices: Iterable[object]) -> list[str]:
    """Check device numbers and return them as text.

    Raises:
        UsageError: there are none, one is repeated, or one is not a number.
    """
    if isinstance(devices, str):
        return parse_devices(devices)
    numbers = [str(device).strip() for device in devices]
    if not numbers:
        raise UsageError("no devices are given (--devices); leave them out to use all")
    for number in numbers:
        if digits(number) is None:
            raise UsageError(
                f"device {quote(number)} is not a number from 0 up (--devices); devices are given "
                "by their number among those that are visible"
            )
    numbers = [str(int(number)) for number in numbers]
    repeated = sorted({number for number in numbers if numbers.count(number) > 1}, key=int)
    if repeated:
        raise UsageError(
            f"named more than once: {', '.join(repeated)} (--devices); name each device once. "
            "For workers that share devices set CUDA_VISIBLE_DEVICES, or the vendor's variable, "
            "and --nproc-per-node"
        )
    return numbers


def visibility_of(
    devices: Sequence[object] | None, environ: Mapping[str, str], *, root: str = "/"
) -> dict[str, str]:
    """The variables that show workers only `devices`, in this order; empty for None.

    Numbers count visible devices: with `CUDA_VISIBLE_DEVICES=4,5,6,7`, device 1 is the entry 5, as
    `cuda:1` is in torch. The variables are those of the vendor of this host's devices, else those
    that are set, else CUDA's.

    Args:
        devices: the numbers, as returned by `parse_devices`.
        environ: the launcher's environment.
        root: the root of the file system.

    Raises:
        UsageError: a device is not visible, or a number is invalid.
    """
    if devices is None:
        return {}
    numbers = [int(number) for number in check_devices(devices)]
    vendor, names = _lists(root, environ)
    source = next((name for name in names if name in environ), None)
    visible = None if source is None else entries_of(environ[source])
    if vendor == INTEL and visible == []:
        visible = None  # an empty list hides nothing from Level Zero
    count, said = _count(vendor, root, environ), f"this host has {vendor} devices"
    if visible is not None:
        count, said = len(visible), f"{source} is {environ[source or '']!r}"
    missing = [number for number in numbers if count is not None and number >= count]
    if missing:
        choices = f"numbers go from 0 to {count - 1}" if count else "none is visible"
        raise UsageError(
            f"--devices names {', '.join(map(str, missing))}, but {said}; {count} can be used: "
            f"{choices}"
        )
    value = ",".join(str(number) if visible is None else visible[number] for number in numbers)
    return dict.fromkeys(names, value)


def own_visibility(
    local_rank: int, environ: Mapping[str, str], *, root: str = "/"
) -> dict[str, str]:
    """The variables that show a worker only its own device: `--virtual-local-rank`.

    Its own device is the entry at its local rank in the vendor's list or, without a list, the
    device of this number, as in torchrun for CUDA. An empty list stays empty.

    Args:
        local_rank: the local rank of the worker.
        environ: the other variables of the worker.
        root: the root of the file system.

    Raises:
        UsageError: the list has no entry for this worker.
    """
    _, names = _lists(root, environ)
    source = next((name for name in names if name in environ), None)
    if source is None:
        return dict.fromkeys(names, str(local_rank))
    entries = entries_of(environ[source])
    if not entries:
        return dict.fromkeys(names, environ[source])
    if local_rank >= len(entries):
        raise UsageError(
            f"local rank {local_rank} has no device of its own (--virtual-local-rank): {source} is "
            f"{environ[source]!r}, which has {len(entries)}; start at most as many workers on this "
            "node, or make more devices visible"
        )
    return dict.fromkeys(names, entries[local_rank])


def _lists(root: str, environ: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """The vendor of this host's devices (empty if unknown), and its variables."""
    for vendor, names in _LISTS.items():
        if LISTERS[vendor](root) or (vendor == NVIDIA and list_nvidia_files(root)):
            return vendor, names
    import glob  # hosts without common devices
    import os

    for pattern, name in _OTHERS:
        if glob.glob(os.path.join(glob.escape(root), pattern)):
            return "", (name,)
    known = [name for names in _LISTS.values() for name in names]
    known += [name for _, name in _OTHERS]
    names = tuple(dict.fromkeys(name for name in known if name in environ))
    # Always include CUDA's, as torchrun does.
    return "", tuple(dict.fromkeys((*names, _CUDA)))


def _count(vendor: str, root: str, environ: Mapping[str, str]) -> int | None:
    """Count the selectable devices if no list is set; None if unknown."""
    if vendor == NVIDIA:
        return None if has_slices(root) else len(list_nvidia_files(root)) or None
    if vendor == AMD:
        left = select_devices(environ.get("ROCR_VISIBLE_DEVICES"), LISTERS[AMD](root))
        return None if left is None else len(left)
    return len(LISTERS[vendor](root)) if vendor == HABANA else None
