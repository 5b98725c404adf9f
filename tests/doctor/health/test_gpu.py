"""The health check `gpu`, with a fake driver."""

from __future__ import annotations

import ast
import inspect
import sys

import plaunch_doctor.gpu
import pynvml
import pytest
from plaunch_doctor.gpu import GpuCheck

from helpers.occasions import RESTART, SHORT, START

GIB = 1 << 30
XID = pynvml.nvmlEventTypeXidCriticalError


class Board:
    """A fake device; values that are exceptions are raised."""

    def __init__(self, uuid):
        self.uuid = uuid
        self.used = [GIB]  # one value for each reading, then the last one
        self.errors = 0
        self.rows = (0, 0, 0, 0)
        self.pages = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


class Driver:
    """A fake `pynvml` with the real constants, errors and structures."""

    def __init__(self, *boards):
        self.boards = list(boards)
        self.events = []  # a device and its Xid error each
        self.registered = []
        self.released = []
        self.refusal = None

    def __getattr__(self, name):
        if name.startswith("nvml") and callable(getattr(pynvml, name)):
            raise AssertionError(f"{name} is not pretended")
        return getattr(pynvml, name)

    def nvmlInit(self):
        if self.refusal is not None:
            raise self.refusal

    def nvmlShutdown(self):
        self.released.append("driver")

    def nvmlEventSetFree(self, events):
        self.released.append(events)

    def nvmlDeviceGetCount(self):
        return len(self.boards)

    def nvmlDeviceGetHandleByIndex(self, index):
        return self._answer(self.boards[index])

    def nvmlDeviceGetUUID(self, board):
        return board.uuid

    def nvmlDeviceGetMemoryInfo(self, board, version=None):
        used = board.used.pop(0) if len(board.used) > 1 else board.used[0]
        return pynvml.c_nvmlMemory_t(total=80 * GIB, free=80 * GIB - used, used=used)

    def nvmlDeviceGetTotalEccErrors(self, board, kind, counter):
        assert (kind, counter) == (
            pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            pynvml.NVML_VOLATILE_ECC,
        )
        return self._answer(board.errors)

    def nvmlDeviceGetRemappedRows(self, board):
        return self._answer(board.rows)

    def nvmlDeviceGetRetiredPagesPendingStatus(self, board):
        return self._answer(board.pages)

    def nvmlEventSetCreate(self):
        return "events"

    def nvmlDeviceRegisterEvents(self, board, kinds, events):
        assert (kinds, events) == (XID, "events")
        self.registered.append(board.uuid)

    def nvmlEventSetWait_v2(self, events, timeout):
        assert (events, timeout) == ("events", 0)
        if not self.events:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        board, xid = self.events.pop(0)
        data = pynvml.c_nvmlEventData_t(eventType=XID, eventData=xid)
        return Event(data, board)

    @staticmethod
    def _answer(value):
        if isinstance(value, Exception):
            raise value
        return value


class Event:
    """The real structure except for the device, which is a pointer there."""

    def __init__(self, data, board):
        self.eventType, self.eventData, self.device = data.eventType, data.eventData, board


@pytest.fixture
def boards():
    return [Board("GPU-aa"), Board("GPU-bb")]


@pytest.fixture
def driver(boards, monkeypatch):
    made = Driver(*boards)
    monkeypatch.setitem(sys.modules, "pynvml", made)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return made


@pytest.fixture
def check(context, tmp_path):
    return GpuCheck(context(), str(tmp_path))


def no_such(what=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND):
    return pynvml.NVMLError(what)


def test_the_real_module_has_every_called_name():
    tree = ast.parse(inspect.getsource(plaunch_doctor.gpu))
    names = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr.lower().startswith("nvml")
    }
    assert len(names) > 15
    assert [name for name in names if not hasattr(pynvml, name)] == []
    for name in names & vars(Driver).keys():
        wanted = list(inspect.signature(getattr(pynvml, name)).parameters)
        assert len(inspect.signature(getattr(Driver, name)).parameters) == len(wanted) + 1, name


# --- without a driver -----------------------------------------------------------------------------


def test_a_machine_without_a_driver_is_not_checked(check, run, driver, monkeypatch):
    driver.refusal = no_such()
    assert run(check) == ["no driver here: not checked"]
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert run(check) == ["no driver here: not checked"]


@pytest.mark.parametrize("name", ["proc/driver/nvidia", "dev/nvidia0"])
def test_a_driver_without_the_module_is_a_problem(check, run, tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    (tmp_path / name).mkdir(parents=True)
    (found,) = check.check(START)
    assert found.found.endswith("the module pynvml is not installed")
    assert found.advice == "pip install 'plaunch[gpu]'"
    assert run(check)[0].startswith("! ")


def test_a_driver_that_does_not_answer_is_a_problem(check, run, driver, tmp_path):
    driver.refusal = no_such(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    assert run(check) == ["! the driver does not answer: Driver Not Loaded"]
    driver.refusal = no_such()
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    assert run(check) == ["! the driver does not answer: NVML Shared Library Not Found"]


# --- with one -------------------------------------------------------------------------------------


def test_healthy_devices(check, run, driver):
    assert run(check) == ["2 devices, 1 GiB, 1 GiB in use"]
    assert run(check, RESTART) == ["2 devices, as at the start"]
    assert driver.registered == ["GPU-aa", "GPU-bb"]


def test_the_driver_is_released_at_the_end(check, run, driver):
    check.close()
    assert driver.released == []
    run(check)
    check.close()
    assert driver.released == ["events", "driver"]


def test_a_device_that_is_gone(check, run, driver, boards):
    run(check)
    del driver.boards[0]
    assert run(check, RESTART) == ["! device 0 (GPU-aa) is gone"]
    driver.boards = [boards[0], no_such(pynvml.NVML_ERROR_GPU_IS_LOST)]
    assert run(check, RESTART) == ["! device 1 (GPU-bb) is gone"]


def test_new_errors_of_memory(check, run, driver, boards):
    boards[0].errors = 2
    run(check)
    assert run(check, RESTART) == ["2 devices, as at the start"]
    boards[0].errors = 5
    assert run(check, RESTART) == ["! device 0 (GPU-aa) has had 3 uncorrectable memory errors"]


def test_unsupported_counters_are_ignored(check, run, driver, boards):
    boards[0].errors = boards[0].rows = no_such(pynvml.NVML_ERROR_NOT_SUPPORTED)
    run(check)
    assert run(check, RESTART) == ["2 devices, as at the start"]


def test_a_failed_query_is_a_problem_of_that_device(check, run, driver, boards):
    run(check)
    boards[1].errors = no_such(pynvml.NVML_ERROR_UNKNOWN)
    assert run(check, RESTART) == ["! device 1 (GPU-bb) fails: Unknown Error"]


def test_a_driver_that_fails_at_the_start(check, run, driver, boards):
    boards[1].errors = no_such(pynvml.NVML_ERROR_UNKNOWN)
    assert run(check) == ["! the driver fails: Unknown Error"]


def test_broken_memory_that_waits_to_be_replaced(check, run, driver, boards):
    boards[0].pages = pynvml.NVML_FEATURE_ENABLED
    boards[1].pages = pynvml.NVML_FEATURE_DISABLED
    waits = "? device 0 (GPU-aa): broken memory waits for a reset to be replaced"
    assert run(check)[0] == waits
    assert run(check, RESTART) == ["2 devices, as at the start"]
    boards[1].rows = (0, 1, 1, 0)
    found = "! device 1 (GPU-bb) has broken memory that waits to be replaced"
    assert run(check, RESTART) == [found]


def test_no_rows_are_left(check, run, driver, boards):
    boards[0].rows = (0, 9, 0, 1)
    found = run(check)
    assert found[0] == "! device 0 (GPU-aa) has no spare memory rows left for broken ones"


def test_xid_errors(check, run, driver, boards):
    run(check)
    driver.events = [(boards[1], 79), (boards[1], 13), (Board("GPU-other"), 48), (boards[0], 31)]
    assert run(check, RESTART) == ["! device 1 (GPU-bb) has had Xid errors: 79"]


def test_an_xid_error_of_a_device_without_a_name_counts_for_all(check, run, driver):
    run(check)
    lost = Board("")
    driver.events = [(lost, 79)]
    found = run(check, RESTART)
    assert [text.endswith("has had Xid errors: 79") for text in found] == [True, True]


def test_it_waits_for_memory_of_earlier_workers(check, run, driver, boards):
    run(check)
    boards[0].used = [70 * GIB, 70 * GIB, GIB + GIB // 4]
    assert run(check, RESTART) == ["2 devices, as at the start"]
    boards[1].used = [70 * GIB]
    found = run(check, SHORT)
    assert found == ["! device 1 (GPU-bb) has 70 GiB in use, 1 GiB at the start"]


@pytest.mark.parametrize(
    ("variable", "devices", "seen"),
    [
        (None, None, "aa bb"),
        ("1", None, "bb"),
        ("1,0", ["1"], "aa"),
        ("GPU-b", None, "bb"),
        ("MIG-1234", None, "aa bb"),
        ("", None, ""),
        (None, ["1", "0"], "bb aa"),
        (None, ["GPU-aa", "GPU-bb"], "aa bb"),
        ("0", ["7"], "aa"),
    ],
)
def test_devices_of_other_jobs_are_ignored(
    context, run, driver, monkeypatch, variable, devices, seen
):
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    more = {} if devices is None else {"devices": devices, "nproc_per_node": len(devices)}
    run(GpuCheck(context(**more)))
    assert driver.registered == [f"GPU-{name}" for name in seen.split()]
