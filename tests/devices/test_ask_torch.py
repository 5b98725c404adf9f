from __future__ import annotations

import os
import stat
import sys
import threading
import time

import pytest
from plaunch.errors import UsageError
from plaunch_devices.torch_child import TorchMissingError, ask_torch

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

    def install(source):
        folder = tmp_path / "lib"
        folder.mkdir()
        (folder / "torch.py").write_text(source)
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
    pytest.importorskip("torch")
    for module in ("cuda", "xpu", "accelerator"):
        assert ask_torch(module) >= 0


def test_a_missing_torch_is_told_apart(python):
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


def test_a_torch_that_hangs_is_ended(python, tmp_path):
    python(
        f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
        "time.sleep(600)"
    )
    began = time.monotonic()
    with pytest.raises(UsageError, match=r"did not answer within 2 s; give a number instead"):
        ask_torch("cuda", timeout=2)
    assert time.monotonic() - began < 60
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_an_interrupted_question_leaves_no_child(python, tmp_path):
    pid_file = tmp_path / "pid"
    python(
        f"import os, time; open({str(pid_file)!r} + '.part', 'w').write(str(os.getpid()))\n"
        f"os.rename({str(pid_file)!r} + '.part', {str(pid_file)!r}); time.sleep(600)"
    )

    def interrupt():
        deadline = time.monotonic() + 30
        while not pid_file.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), 2)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        ask_torch("cuda", timeout=60)
    thread.join()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


def test_the_workers_interpreter_is_asked(tmp_path, monkeypatch):
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
