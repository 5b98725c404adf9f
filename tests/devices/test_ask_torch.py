from __future__ import annotations

import os
import stat
import sys
import threading
import time

import pytest
from plaunch.errors import UsageError
from plaunch_devices.torch_child import (
    TorchMissingError,
    ask_torch,
    count_private_use,
    locate_with_torch,
)

from helpers.processes import is_reaped
from helpers.waiting import wait_for_files

# A torch of four devices, in place of the real one.
TORCH = """
print("noise from an import")
class Devices:
    def __init__(self, count): self.count = count
    def is_available(self): return self.count > 0
    def device_count(self): return self.count
cuda, xpu = Devices(4), Devices(0)
"""


@pytest.fixture
def python(tmp_path, monkeypatch):
    """Install a torch of the test's own into the child's interpreter."""

    def install(source, entry_point=""):
        folder = tmp_path / "lib"
        folder.mkdir()
        (folder / "torch.py").write_text(source)
        if entry_point:
            (folder / "npu-1.dist-info").mkdir()
            (folder / "npu-1.dist-info" / "entry_points.txt").write_text(
                f"[torch.backends]\n{entry_point}\n"
            )
        monkeypatch.setenv("PYTHONPATH", str(folder))

    return install


@pytest.mark.parametrize(
    ("source", "module", "expected"),
    [
        (TORCH, "cuda", 4),
        (TORCH, "xpu", 0),
        (TORCH, "accelerator", 4),  # before torch 2.6 there is no torch.accelerator
        (TORCH + "accelerator = Devices(2)", "accelerator", 2),
        (TORCH + "del xpu", "xpu", 0),
    ],
)
def test_the_answer_is_torchs(python, source, module, expected):
    python(source)
    assert ask_torch(module, timeout=60) == expected


@pytest.mark.slow
def test_the_real_torch_answers():
    torch = pytest.importorskip("torch")
    assert ask_torch("accelerator") >= 0
    for module in (torch.cuda, torch.xpu):
        assert callable(module.is_available)
        assert callable(module.device_count)
    assert count_private_use("npu") is None


def test_a_missing_torch_is_another_error(python):
    python("raise ModuleNotFoundError('no module named torch')")
    with pytest.raises(TorchMissingError) as caught:
        ask_torch("cuda", timeout=60)
    assert "which has no torch: no module named torch; install it" in str(caught.value)
    assert repr(sys.executable) in str(caught.value)
    assert isinstance(caught.value, UsageError)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise RuntimeError('driver is too old')", "RuntimeError: driver is too old"),
        ("import os; os._exit(0)", "exit code 0 and said: nothing on stderr"),
        ("import os; os.kill(os.getpid(), 11)", "exit code -11"),
        ("import sys; print('x'); sys.exit(0)", "exit code 0"),
    ],
)
def test_a_torch_that_fails_is_quoted(python, source, said):
    python(source)
    with pytest.raises(UsageError, match="give a number instead") as caught:
        ask_torch("cuda", timeout=60)
    assert said in str(caught.value)
    assert not isinstance(caught.value, TorchMissingError)


@pytest.fixture
def hanging(python, tmp_path):
    """A torch whose import hangs; returns a function for the pid of its process."""
    path = tmp_path / "pid"
    python(
        f"import os, time; open({str(path)!r} + '.part', 'w').write(str(os.getpid()))\n"
        f"os.rename({str(path)!r} + '.part', {str(path)!r}); time.sleep(600)"
    )

    def pid():
        wait_for_files(path)
        return int(path.read_text())

    return pid


def test_a_torch_that_hangs_is_killed(hanging):
    began = time.monotonic()
    with pytest.raises(UsageError, match=r"did not answer within 2 s; give a number instead"):
        ask_torch("cuda", timeout=2)
    assert time.monotonic() - began < 60
    assert is_reaped(hanging())


def test_an_interrupted_question_leaves_no_child(hanging):
    thread = threading.Thread(target=lambda: hanging() and os.kill(os.getpid(), 2))
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        ask_torch("cuda", timeout=60)
    thread.join()
    assert is_reaped(hanging())


def test_the_workers_interpreter_is_queried(tmp_path, monkeypatch):
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho 7\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PYTHON_EXEC", str(fake))
    assert ask_torch("cuda", timeout=60) == 7


def test_an_interpreter_that_does_not_exist_is_named(monkeypatch):
    monkeypatch.setenv("PYTHON_EXEC", "/no/such/python")
    with pytest.raises(UsageError, match=r"'/no/such/python'.*cannot be started"):
        ask_torch("cuda")


def test_a_script_called_torch_in_this_directory_is_not_torch(python, tmp_path, monkeypatch):
    python(TORCH)
    (tmp_path / "torch.py").write_text("raise SystemExit('wrong one')")
    monkeypatch.chdir(tmp_path)
    assert ask_torch("cuda", timeout=60) == 4


# --- private-use backends -------------------------------------------------------------------------

BACKEND = "npu = torch_npu:register"  # which torch loads when it is imported
PRIVATE = """
class C:
    def _get_privateuse1_backend_name(self): return NAME
_C = C()
"""


@pytest.mark.parametrize(
    ("source", "word", "expected"),
    [
        (TORCH + PRIVATE + "NAME = 'npu'; npu = Devices(8)", "npu", 8),
        (TORCH + PRIVATE + "NAME = 'npu'; npu = Devices(0)", "npu", 0),
        (TORCH + PRIVATE + "NAME = 'privateuseone'", "privateuseone", 0),
        (TORCH + PRIVATE + "NAME = 'npu'", "gpus", None),
        (TORCH + PRIVATE + "NAME = 'npu'", "cuda", None),
        ("raise ImportError('none here')", "npu", None),
    ],
)
def test_a_private_use_backend_has_the_name_that_torch_knows(python, source, word, expected):
    python(source, BACKEND)
    assert count_private_use(word, timeout=60) == expected


def test_torch_is_not_imported_where_no_distribution_has_a_backend(python, tmp_path):
    trace = tmp_path / "trace"
    python(f"open({str(trace)!r}, 'w')" + TORCH + PRIVATE + "NAME = 'npu'; npu = Devices(8)")
    assert count_private_use("gpus", timeout=60) is None
    assert not trace.exists()


def test_an_invalid_name_is_not_looked_up(monkeypatch):
    monkeypatch.setenv("PYTHON_EXEC", "/no/such/python")
    assert count_private_use("2.5") is None


def test_a_torch_that_fails_with_its_backend_is_quoted(python):
    python("raise RuntimeError('no driver')", BACKEND)
    with pytest.raises(UsageError, match=r"private-use backend 'npu'.*RuntimeError: no driver"):
        count_private_use("npu", timeout=60)


# --- places ---------------------------------------------------------------------------------------

PLACED = (
    TORCH
    + """
class Shown:
    def __init__(self, bus):
        if bus:
            self.pci_domain_id, self.pci_bus_id, self.pci_device_id = 1, bus, 0
def shown(index):
    import os
    return Shown([0x1b, 0x9d, 0, 0xdf][index] if os.environ.get("SEEN") == "yes" else 0)
cuda.get_device_properties = shown
"""
)


def test_torch_locates_its_devices(python):
    python(PLACED)
    devices = locate_with_torch(environ={**os.environ, "SEEN": "yes"}, timeout=60)
    assert [(device.index, device.pci_address) for device in devices] == [
        (0, "0001:1b:00.0"),
        (1, "0001:9d:00.0"),
        (2, ""),
        (3, "0001:df:00.0"),
    ]
    assert {device.pci_address for device in locate_with_torch(timeout=60)} == {""}


def test_a_torch_without_devices_has_no_places(python):
    python(TORCH + "cuda = Devices(0)")
    assert locate_with_torch(timeout=60) == []
