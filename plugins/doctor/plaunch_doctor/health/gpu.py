"""`gpu`: NVIDIA's devices are all there and sound, and their memory is free again.

Everything is asked of the driver's library NVML, through the module `pynvml` of the distribution
`nvidia-ml-py`. No device is opened for computing.
"""

from __future__ import annotations

import contextlib
import glob
import importlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from plaunch.doctor import Finding, Status
from plaunch.numbers import format_bytes

from plaunch_doctor.health.waiting import Patience
from plaunch_doctor.sizes import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plaunch.health import HealthOccasion
    from plaunch.plugin import PluginContext

_WHAT = "gpu"
_SLACK = 512 * MIB  # bytes that a device may use more than at the start, such as other contexts
_RESET = "have the device reset or replaced: see `dmesg` for its Xid errors, and `nvidia-smi -q`"
# What users do, and not the device: a program used memory that it had not, or was stopped.
# https://docs.nvidia.com/deploy/xid-errors: "graphics engine exception", "GPU memory page fault",
# "preemptive cleanup", "GPU stopped processing".
_PROGRAMS_XIDS = frozenset({13, 31, 43, 45})


@dataclass
class Device:
    """What is known of one device.

    Args:
        handle: NVML's.
        uuid: its name, which no other device has.
        index: its number, as NVML counts.
        memory: bytes that were in use at the start.
        errors: uncorrectable memory errors since the driver was loaded; None if it counts none.
        is_worn: whether rows or pages wait for a reset to be replaced.
        xids: the Xid errors since the start.
    """

    handle: Any
    uuid: str
    index: int
    memory: int = 0
    errors: int | None = None
    is_worn: bool = False
    xids: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        """How messages call it."""
        return f"device {self.index} ({self.uuid})"


class GpuCheck:
    """Compares the devices with what they were at the start.

    Args:
        context: the launch.
        root: where the file system starts; `/` but in tests.
    """

    def __init__(self, context: PluginContext, root: str = "/") -> None:
        self._root = root
        chosen = context.settings.get("devices")
        self._chosen = list(map(str, chosen)) if isinstance(chosen, list) else []
        self._patience = Patience()
        self._nvml: Any = None
        self._devices: list[Device] | None = None  # as they were at the start
        self._events: Any = None  # NVML's set of them

    def check(self, occasion: HealthOccasion) -> Iterator[Finding]:
        """Look at all devices that this job uses; wait for their memory."""
        self._patience.begin(occasion)
        if self._nvml is None:
            trouble = self._load()
            if trouble is not None:
                yield trouble
                return
        try:
            if self._devices is None:
                yield from self._begin()
            else:
                yield from self._compare(self._devices)
        except self._nvml.NVMLError as error:
            yield Finding(Status.PROBLEM, _WHAT, f"the driver fails: {error}", _RESET)

    def close(self) -> None:
        """Do not wait any longer, and release the driver."""
        self._patience.end()
        nvml = self._nvml
        if nvml is not None:  # a check that is still at work gets errors from now on
            with contextlib.suppress(nvml.NVMLError):
                if self._events is not None:
                    nvml.nvmlEventSetFree(self._events)
                nvml.nvmlShutdown()

    def _load(self) -> Finding | None:
        """Load NVML; what is to be said if that cannot be."""
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            if not self._has_driver():
                return Finding(Status.OK, _WHAT, "no driver here: not looked at")
            return Finding(
                Status.PROBLEM,
                _WHAT,
                "there is a driver of NVIDIA's, but the module pynvml is not installed",
                "pip install 'plaunch[gpu]'",
            )
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            if isinstance(error, nvml.NVMLError_LibraryNotFound) and not self._has_driver():
                return Finding(Status.OK, _WHAT, "no driver here: not looked at")
            return Finding(Status.PROBLEM, _WHAT, f"the driver does not answer: {error}", _RESET)
        self._nvml = nvml
        return None

    def _has_driver(self) -> bool:
        names = ("proc/driver/nvidia", "dev/nvidia*")
        return any(glob.glob(os.path.join(self._root, name)) for name in names)

    # --- the start --------------------------------------------------------------------------------

    def _begin(self) -> Iterator[Finding]:
        devices = _visible(self._list(), os.environ.get("CUDA_VISIBLE_DEVICES"), self._chosen)
        for device in devices:
            device.memory = self._memory(device)
            device.errors = self._errors(device)
            device.is_worn, is_broken = self._wear(device)
            if is_broken:
                yield self._bad(device, "has no spare memory rows left for broken ones")
            elif device.is_worn:
                text = f"{device.name}: broken memory waits for a reset to be replaced"
                yield Finding(Status.WARNING, _WHAT, text, _RESET)
        self._listen(devices)
        self._devices = devices
        used = ", ".join(format_bytes(device.memory) for device in devices)
        yield Finding(
            Status.OK, _WHAT, f"{len(devices)} devices" + (f", {used} in use" if used else "")
        )

    def _list(self) -> list[Device]:
        nvml = self._nvml
        found = []
        for index in range(nvml.nvmlDeviceGetCount()):
            # A device that has fallen off the bus still counts, but gives no handle.
            with contextlib.suppress(nvml.NVMLError):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                found.append(Device(handle, _text(nvml.nvmlDeviceGetUUID(handle)), index))
        return found

    def _listen(self, devices: list[Device]) -> None:
        """Have Xid errors kept from now on, where the driver does that."""
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
            for device in devices:
                with contextlib.suppress(nvml.NVMLError):
                    kind = nvml.nvmlEventTypeXidCriticalError
                    nvml.nvmlDeviceRegisterEvents(device.handle, kind, events)
        except nvml.NVMLError:
            return
        self._events = events

    # --- later ------------------------------------------------------------------------------------

    def _compare(self, before: list[Device]) -> Iterator[Finding]:
        there = {device.uuid: device for device in self._list()}
        self._hear(before)
        bad: list[Finding] = []
        for device in before:
            if device.uuid not in there:
                bad.append(self._bad(device, "is gone"))
                continue
            device.handle = there[device.uuid].handle
            try:
                bad += self._look(device)
            except self._nvml.NVMLError as error:
                bad.append(self._bad(device, f"fails: {error}"))
        yield from bad
        if not bad:
            yield Finding(Status.OK, _WHAT, f"{len(before)} devices, as at the start")

    def _look(self, device: Device) -> Iterator[Finding]:
        xids = [xid for xid in device.xids if xid not in _PROGRAMS_XIDS]
        if xids:
            yield self._bad(device, f"has had Xid errors: {', '.join(map(str, xids))}")
        errors = self._errors(device)
        if errors is not None and errors > (device.errors or 0):
            number = errors - (device.errors or 0)
            yield self._bad(device, f"has had {number} uncorrectable memory errors")
        is_worn, is_broken = self._wear(device)
        if is_broken or (is_worn and not device.is_worn):
            yield self._bad(device, "has broken memory that waits to be replaced")
        most = device.memory + _SLACK
        while (used := self._memory(device)) > most and self._patience.pause():
            pass
        if used > most:
            yield Finding(
                Status.PROBLEM,
                _WHAT,
                f"{device.name} has {format_bytes(used)} in use, "
                f"{format_bytes(device.memory)} at the start",
                "end what uses it (nvidia-smi); earlier workers may have left processes behind",
            )

    def _hear(self, devices: list[Device]) -> None:
        """Take the Xid errors that the driver has kept."""
        if self._events is None:
            return
        nvml = self._nvml
        while self._patience.remaining > 0:
            try:
                data = nvml.nvmlEventSetWait_v2(self._events, 0)
            except nvml.NVMLError:  # there is none
                return
            if data.eventType == nvml.nvmlEventTypeXidCriticalError:
                self._keep(devices, data)

    def _keep(self, devices: list[Device], data: Any) -> None:
        """Note one event at its device; at all of them, if the device cannot say its name."""
        uuid = ""
        with contextlib.suppress(self._nvml.NVMLError):
            uuid = _text(self._nvml.nvmlDeviceGetUUID(data.device))
        for device in devices:
            if uuid in ("", device.uuid):
                device.xids.append(int(data.eventData))

    # --- questions about one device ---------------------------------------------------------------

    def _memory(self, device: Device) -> int:
        return int(self._nvml.nvmlDeviceGetMemoryInfo(device.handle).used)

    def _errors(self, device: Device) -> int | None:
        nvml = self._nvml
        try:
            return int(
                nvml.nvmlDeviceGetTotalEccErrors(
                    device.handle,
                    nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                    nvml.NVML_VOLATILE_ECC,
                )
            )
        except nvml.NVMLError_NotSupported:
            return None  # it has no such memory, or that is off

    def _wear(self, device: Device) -> tuple[bool, bool]:
        """Whether rows or pages wait for a reset, and whether no more rows can be replaced."""
        nvml = self._nvml
        is_pending = is_broken = False
        with contextlib.suppress(nvml.NVMLError_NotSupported):
            _, _, pending, failure = nvml.nvmlDeviceGetRemappedRows(device.handle)
            is_pending, is_broken = bool(pending), bool(failure)
        with contextlib.suppress(nvml.NVMLError_NotSupported):
            pages = nvml.nvmlDeviceGetRetiredPagesPendingStatus(device.handle)
            is_pending = is_pending or pages == nvml.NVML_FEATURE_ENABLED
        return is_pending, is_broken

    def _bad(self, device: Device, text: str) -> Finding:
        return Finding(Status.PROBLEM, _WHAT, f"{device.name} {text}", _RESET)


def _visible(devices: list[Device], variable: str | None, chosen: list[str]) -> list[Device]:
    """Those that the workers see: of `CUDA_VISIBLE_DEVICES`, and of those the `chosen` ones.

    All of them, where that cannot be told.
    """
    if variable is not None and not variable.strip():
        return []
    if variable is not None:
        words = [word.strip() for word in variable.split(",")]
        found = [device for word in words for device in devices if _is_meant(device, word)]
        devices = found or devices
    numbers = [int(word) for word in chosen if word.isdecimal()]
    if chosen and len(numbers) == len(chosen) and max(numbers) < len(devices):
        devices = [devices[number] for number in numbers]
    return devices


def _is_meant(device: Device, word: str) -> bool:
    if word.isdecimal():
        return int(word) == device.index
    return word.startswith("GPU-") and device.uuid.startswith(word)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
