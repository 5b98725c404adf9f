"""The health check `gpu`: no NVIDIA device is missing or faulty, and their memory is free again.

All facts come from the driver's library NVML, through the module `pynvml` of the distribution
`nvidia-ml-py`. The check creates no CUDA context.
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

from plaunch_doctor.health import CheckDeadline
from plaunch_doctor.machine import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plaunch.health import HealthOccasion
    from plaunch.plugin import PluginContext

_WHAT = "gpu"
_SLACK = 512 * MIB  # bytes in use beyond those at the start, such as for other contexts
_RESET = "have the device reset or replaced: see `dmesg` for its Xid errors, and `nvidia-smi -q`"
# Caused by programs and not by the device: an invalid memory access, or a stopped program.
# https://docs.nvidia.com/deploy/xid-errors: "graphics engine exception", "GPU memory page fault",
# "preemptive cleanup", "GPU stopped processing".
_PROGRAMS_XIDS = frozenset({13, 31, 43, 45})


@dataclass
class GpuState:
    """The state of one device at the start, and the errors since then.

    Args:
        handle: NVML's handle.
        uuid: its UUID.
        index: its index in NVML.
        memory: bytes in use at the start.
        errors: uncorrectable memory errors since the driver was loaded; None if not counted.
        is_repair_pending: whether rows or pages of memory are replaced at the next reset.
        xids: the Xid errors since the start.
    """

    handle: Any
    uuid: str
    index: int
    memory: int = 0
    errors: int | None = None
    is_repair_pending: bool = False
    xids: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The device's name in messages."""
        return f"device {self.index} ({self.uuid})"


class GpuCheck:
    """Compares the devices with their state at the start.

    Args:
        context: the launch.
        root: where the file system starts; `/` but in tests.
    """

    def __init__(self, context: PluginContext, root: str = "/") -> None:
        self._root = root
        chosen = context.settings.get("devices")
        self._chosen = list(map(str, chosen)) if isinstance(chosen, list) else []
        self._deadline = CheckDeadline()
        self._nvml: Any = None
        self._devices: list[GpuState] | None = None  # as they were at the start
        self._events: Any = None  # NVML's set of them

    def check(self, occasion: HealthOccasion) -> Iterator[Finding]:
        """Check all devices of this job; wait until their memory is free."""
        self._deadline.begin(occasion)
        if self._nvml is None:
            trouble = self._load()
            if trouble is not None:
                yield trouble
                return
        try:
            if self._devices is None:
                yield from self._record_start()
            else:
                yield from self._compare(self._devices)
        except self._nvml.NVMLError as error:
            yield Finding(Status.PROBLEM, _WHAT, f"the driver fails: {error}", _RESET)

    def close(self) -> None:
        """Stop waiting, and release the driver."""
        self._deadline.end()
        nvml = self._nvml
        if nvml is not None:  # a running check now gets errors from NVML
            with contextlib.suppress(nvml.NVMLError):
                if self._events is not None:
                    nvml.nvmlEventSetFree(self._events)
                nvml.nvmlShutdown()

    def _load(self) -> Finding | None:
        """Load NVML; return a finding if that fails."""
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            if not self._has_driver():
                return Finding(Status.OK, _WHAT, "no driver here: not checked")
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
                return Finding(Status.OK, _WHAT, "no driver here: not checked")
            return Finding(Status.PROBLEM, _WHAT, f"the driver does not answer: {error}", _RESET)
        self._nvml = nvml
        return None

    def _has_driver(self) -> bool:
        names = ("proc/driver/nvidia", "dev/nvidia*")
        return any(glob.glob(os.path.join(self._root, name)) for name in names)

    # --- the start --------------------------------------------------------------------------------

    def _record_start(self) -> Iterator[Finding]:
        devices = _visible(
            self._find_devices(), os.environ.get("CUDA_VISIBLE_DEVICES"), self._chosen
        )
        for device in devices:
            device.memory = self._memory(device)
            device.errors = self._errors(device)
            device.is_repair_pending, is_broken = self._pending_repairs(device)
            if is_broken:
                yield self._problem(device, "has no spare memory rows left for broken ones")
            elif device.is_repair_pending:
                text = f"{device.name}: broken memory waits for a reset to be replaced"
                yield Finding(Status.WARNING, _WHAT, text, _RESET)
        self._subscribe(devices)
        self._devices = devices
        used = ", ".join(format_bytes(device.memory) for device in devices)
        yield Finding(
            Status.OK, _WHAT, f"{len(devices)} devices" + (f", {used} in use" if used else "")
        )

    def _find_devices(self) -> list[GpuState]:
        nvml = self._nvml
        found = []
        for index in range(nvml.nvmlDeviceGetCount()):
            # A device that has fallen off the bus is counted, but has no handle.
            with contextlib.suppress(nvml.NVMLError):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                found.append(GpuState(handle, _text(nvml.nvmlDeviceGetUUID(handle)), index))
        return found

    def _subscribe(self, devices: list[GpuState]) -> None:
        """Subscribe to Xid errors, if the driver supports events."""
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

    def _compare(self, before: list[GpuState]) -> Iterator[Finding]:
        there = {device.uuid: device for device in self._find_devices()}
        self._read_xid_events(before)
        bad: list[Finding] = []
        for device in before:
            if device.uuid not in there:
                bad.append(self._problem(device, "is gone"))
                continue
            device.handle = there[device.uuid].handle
            try:
                bad += self._compare_device(device)
            except self._nvml.NVMLError as error:
                bad.append(self._problem(device, f"fails: {error}"))
        yield from bad
        if not bad:
            yield Finding(Status.OK, _WHAT, f"{len(before)} devices, as at the start")

    def _compare_device(self, device: GpuState) -> Iterator[Finding]:
        xids = [xid for xid in device.xids if xid not in _PROGRAMS_XIDS]
        if xids:
            yield self._problem(device, f"has had Xid errors: {', '.join(map(str, xids))}")
        errors = self._errors(device)
        if errors is not None and errors > (device.errors or 0):
            number = errors - (device.errors or 0)
            yield self._problem(device, f"has had {number} uncorrectable memory errors")
        is_repair_pending, is_broken = self._pending_repairs(device)
        if is_broken or (is_repair_pending and not device.is_repair_pending):
            yield self._problem(device, "has broken memory that waits to be replaced")
        most = device.memory + _SLACK
        while (used := self._memory(device)) > most and self._deadline.pause():
            pass
        if used > most:
            yield Finding(
                Status.PROBLEM,
                _WHAT,
                f"{device.name} has {format_bytes(used)} in use, "
                f"{format_bytes(device.memory)} at the start",
                "end what uses it (nvidia-smi); earlier workers may have left processes behind",
            )

    def _read_xid_events(self, devices: list[GpuState]) -> None:
        """Read the Xid errors since the last call."""
        if self._events is None:
            return
        nvml = self._nvml
        while self._deadline.remaining > 0:
            try:
                data = nvml.nvmlEventSetWait_v2(self._events, 0)
            except nvml.NVMLError:  # no more events
                return
            if data.eventType == nvml.nvmlEventTypeXidCriticalError:
                self._record_xid(devices, data)

    def _record_xid(self, devices: list[GpuState], data: Any) -> None:
        """Record an Xid error for its device; for all devices if its UUID cannot be read."""
        uuid = ""
        with contextlib.suppress(self._nvml.NVMLError):
            uuid = _text(self._nvml.nvmlDeviceGetUUID(data.device))
        for device in devices:
            if uuid in ("", device.uuid):
                device.xids.append(int(data.eventData))

    # --- the state of one device ------------------------------------------------------------------

    def _memory(self, device: GpuState) -> int:
        return int(self._nvml.nvmlDeviceGetMemoryInfo(device.handle).used)

    def _errors(self, device: GpuState) -> int | None:
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
            return None  # the device has no ECC memory, or ECC is disabled

    def _pending_repairs(self, device: GpuState) -> tuple[bool, bool]:
        """Return whether memory awaits replacement at a reset, and whether no spares are left."""
        nvml = self._nvml
        is_pending = is_broken = False
        with contextlib.suppress(nvml.NVMLError_NotSupported):
            _, _, pending, failure = nvml.nvmlDeviceGetRemappedRows(device.handle)
            is_pending, is_broken = bool(pending), bool(failure)
        with contextlib.suppress(nvml.NVMLError_NotSupported):
            pages = nvml.nvmlDeviceGetRetiredPagesPendingStatus(device.handle)
            is_pending = is_pending or pages == nvml.NVML_FEATURE_ENABLED
        return is_pending, is_broken

    def _problem(self, device: GpuState, text: str) -> Finding:
        return Finding(Status.PROBLEM, _WHAT, f"{device.name} {text}", _RESET)


def _visible(devices: list[GpuState], variable: str | None, chosen: list[str]) -> list[GpuState]:
    """Return the devices that workers see: the `chosen` ones of `CUDA_VISIBLE_DEVICES`.

    Returns all of them if the variable or `chosen` does not match any device.
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


def _is_meant(device: GpuState, word: str) -> bool:
    if word.isdecimal():
        return int(word) == device.index
    return word.startswith("GPU-") and device.uuid.startswith(word)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
