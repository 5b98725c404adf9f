"""The health check `memory`, on machines simulated by files."""

from __future__ import annotations

import pytest
from plaunch.doctor import DoctorContext
from plaunch_doctor.memory import MemoryCheck, read_memory

from helpers.occasions import RESTART, SHORT, START

GIB = 1 << 30
GROUP = "sys/fs/cgroup/job"


@pytest.fixture
def machine(tmp_path):
    """Write a machine of 100 GiB, its available memory, and limit and use of its control group."""

    def write(available, limit=None, used=0, cache=0):
        files = {
            "proc/meminfo": f"MemTotal: {100 * GIB // 1024} kB\n"
            f"MemAvailable: {available * GIB // 1024} kB\nHugePages_Total: 0\n",
            "proc/self/cgroup": "0::/job\n",
            f"{GROUP}/memory.max": "max\n" if limit is None else f"{limit * GIB}\n",
            f"{GROUP}/memory.current": f"{used * GIB}\n",
            f"{GROUP}/memory.stat": f"anon 1\ninactive_file {cache * GIB}\n",
        }
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return str(tmp_path)

    return write


def test_what_a_control_group_leaves_counts(machine):
    def read(*given, **limits):
        return read_memory(DoctorContext(root=machine(*given, **limits)))

    assert read(50) == (100 * GIB, 50 * GIB)
    assert read(50, limit=20, used=12, cache=4) == (20 * GIB, 12 * GIB)
    assert read(5, limit=20, used=12) == (100 * GIB, 5 * GIB)


def test_five_percent_or_the_given_size_must_be_free(machine, context, run):
    root = machine(4)
    assert run(MemoryCheck(context(), root), SHORT) == [
        "! 4 GiB available of 100 GiB, less than 5 GiB"
    ]
    assert run(MemoryCheck(context("3G"), root)) == ["4 GiB available of 100 GiB"]


def test_memory_of_workers_must_be_free_again(machine, context, run):
    check = MemoryCheck(context(), machine(80))
    assert run(check, START) == ["80 GiB available of 100 GiB"]
    machine(71)
    assert run(check, RESTART) == ["71 GiB available of 100 GiB"]
    machine(60)
    assert run(check, SHORT) == ["! 60 GiB available of 100 GiB, 20 GiB less than at the start"]


def test_it_waits_for_free_memory(machine, context, run, monkeypatch):
    check = MemoryCheck(context(), machine(80))
    run(check, START)
    machine(60)
    pause = "plaunch_doctor.health.CheckDeadline.pause"
    monkeypatch.setattr(pause, lambda patience: bool(machine(79)))
    assert run(check, RESTART) == ["79 GiB available of 100 GiB"]


def test_close_ends_the_wait(machine, context, run):
    check = MemoryCheck(context(), machine(1))
    check.close()
    assert run(check, RESTART)[0].startswith("! 1 GiB available")


def test_a_system_without_memory_information_is_healthy(context, run, tmp_path):
    found = run(MemoryCheck(context(), str(tmp_path)))
    assert found == ["the system does not report how much is available"]
