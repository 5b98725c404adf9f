"""Memory, processors, limits, disks, and leftovers of earlier jobs."""

from __future__ import annotations

import os
import tempfile

import pytest
from plaunch.doctor import Status
from plaunch.numbers import format_bytes
from plaunch_doctor.disks import check_log_folder, check_temporary_folder
from plaunch_doctor.host import check_leftovers
from plaunch_doctor.limits import (
    check_core_files,
    check_locked_memory,
    check_open_files,
    check_processes,
    check_processors,
)
from plaunch_doctor.machine import GIB, MIB, UNLIMITED, Machine, Space
from plaunch_doctor.memory import check_memory, check_shared_memory

OK, WARNING, PROBLEM = Status.OK, Status.WARNING, Status.PROBLEM


@pytest.mark.parametrize(
    ("free", "nproc", "status"),
    [
        (64 * MIB, 1, WARNING),  # docker's default
        (64 * MIB, 8, PROBLEM),
        (GIB, 8, WARNING),
        (2 * GIB, 8, OK),
    ],
)
def test_shared_memory(node, free, nproc, status):
    (node.root / "dev/shm").mkdir(parents=True)
    node.machine.spaces = {"dev/shm": Space(2 * free, free)}
    given = {"settings": {"nproc_per_node": nproc}}
    node.check_says(status, format_bytes(free), check_shared_memory, **given)


def test_no_shared_memory(node):
    assert node.only(check_shared_memory).status is WARNING


def test_sizes_in_words():
    sizes = {0: "0 bytes", 64 * MIB: "64 MiB", 3 * GIB // 2: "1.5 GiB", 1023: "1023 bytes"}
    assert {size: format_bytes(size) for size in sizes} == sizes
    assert format_bytes(1010 * MIB) == "1010 MiB"


GROUP_FILES = {
    2: ("0::/job/step", "/sys/fs/cgroup/job", "memory.max", "memory.current"),
    1: (
        "4:memory:/job/step",
        "/sys/fs/cgroup/memory/job",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
    ),
}


@pytest.mark.parametrize("version", GROUP_FILES)
@pytest.mark.parametrize(
    ("limit", "status"), [(str(8 * GIB), OK), (str(2 * GIB), WARNING), ("max", OK)]
)
def test_memory_of_the_control_group(node, version, limit, status):
    group, folder, max_name, used_name = GROUP_FILES[version]
    node.write("/proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 33554432 kB\n")
    node.write("/proc/self/cgroup", f"{group}\n")
    node.write(f"{folder}/{max_name}", limit)
    node.write(f"{folder}/{used_name}", str(GIB))
    found = node.only(check_memory, settings={"nproc_per_node": 4})
    assert found.status is status
    assert ("control group" in found.found) == (limit != "max")


def test_memory_of_the_machine(node):
    node.write("/proc/meminfo", "MemTotal: 4194304 kB\nMemAvailable: 1048576 kB\n")
    assert node.only(check_memory, settings={"nproc_per_node": 2}).status is OK
    assert node.only(check_memory, settings={"nproc_per_node": 3}).status is WARNING


def test_the_page_cache_of_a_control_group_counts_as_available(node):
    node.write("/proc/self/cgroup", "0::/job\n")
    node.write("/sys/fs/cgroup/job/memory.max", str(2 * GIB))
    node.write("/sys/fs/cgroup/job/memory.current", str(2 * GIB))
    assert node.only(check_memory).status is WARNING
    node.write("/sys/fs/cgroup/job/memory.stat", f"inactive_file {GIB}\n")
    assert node.only(check_memory).status is OK


def test_oom_kills_are_reported(node):
    node.write("/proc/self/cgroup", "0::/job\n")
    node.write("/sys/fs/cgroup/job/memory.events", "oom 3\noom_kill 2\n")
    assert "killed 2 process" in node.only(check_memory, "out of memory").found


@pytest.mark.parametrize(
    ("group", "files", "nproc", "status"),
    [
        ("", {}, 8, OK),
        ("", {}, 9, WARNING),
        ("0::/job", {"job/cpu.max": "200000 100000"}, 4, WARNING),
        ("0::/job", {"job/cpu.max": "max 100000"}, 8, OK),
        ("0::/job/a", {"job/cpu.max": "200000 100000", "job/a/cpu.max": "max 1"}, 3, WARNING),
        (
            "2:cpu,cpuacct:/job",
            {"cpu/job/cpu.cfs_quota_us": "200000", "cpu/job/cpu.cfs_period_us": "100000"},
            4,
            WARNING,
        ),
        (
            "2:cpu,cpuacct:/job",
            {"cpu/job/cpu.cfs_quota_us": "-1", "cpu/job/cpu.cfs_period_us": "100000"},
            4,
            OK,
        ),
    ],
)
def test_processors_against_workers(node, group, files, nproc, status):
    node.write("/proc/self/cgroup", group)
    for path, text in files.items():
        node.write(f"/sys/fs/cgroup/{path}", text)
    found = node.only(check_processors, "processors", settings={"nproc_per_node": nproc})
    assert found.status is status


@pytest.mark.parametrize(
    ("value", "nproc", "status", "advice"),
    [
        (None, 4, OK, ""),
        ("2", 4, OK, ""),
        ("4", 4, WARNING, "export OMP_NUM_THREADS=2"),
        ("4,2", 1, OK, ""),
        ("many", 1, WARNING, "correct or unset it"),
    ],
)
def test_threads_of_all_workers_fit_the_processors(node, value, nproc, status, advice):
    environ = {} if value is None else {"OMP_NUM_THREADS": value}
    found = node.only(
        check_processors, "OMP_NUM_THREADS", settings={"nproc_per_node": nproc}, environ=environ
    )
    assert (found.status, found.advice) == (status, advice)


def test_a_single_worker_uses_all_processors_despite_the_quota(node):
    node.write("/proc/self/cgroup", "0::/job")
    node.write("/sys/fs/cgroup/job/cpu.max", "200000 100000")
    assert node.only(check_processors, "OMP_NUM_THREADS").advice == "export OMP_NUM_THREADS=2"


@pytest.mark.parametrize(
    ("limit", "nodes", "nproc", "status", "advice"),
    [
        ((UNLIMITED, UNLIMITED), 100, 8, OK, ""),
        ((1024, 4096), 1, 8, OK, ""),
        ((1024, 1 << 20), 32, 8, WARNING, "ulimit -n 1536"),
        ((1024, 1024), 32, 8, WARNING, "raise the hard limit"),
        ((100, 4096), 1, 8, PROBLEM, "ulimit -n 544"),
    ],
)
def test_open_files(node, limit, nodes, nproc, status, advice):
    node.machine.limits = {"RLIMIT_NOFILE": limit}
    found = node.only(check_open_files, settings={"max_nodes": nodes, "nproc_per_node": nproc})
    assert found.status is status
    assert advice in found.advice


@pytest.mark.parametrize(
    ("limit", "user", "status"),
    [(1000, 1000, OK), (160, 1000, WARNING), (101, 1000, PROBLEM), (101, 0, OK)],
)
def test_processes_of_the_user(node, limit, user, status):
    node.machine.limits = {"RLIMIT_NPROC": (limit, limit)}
    node.machine.user = user
    node.write("/proc/10/status", "Name:\tx\nUid:\t1000\t1000\t1000\t1000\nThreads:\t100\n")
    node.write("/proc/11/status", "Name:\ty\nUid:\t2\t2\t2\t2\nThreads:\t500\n")
    assert node.only(check_processes, settings={"nproc_per_node": 4}).status is status


def test_processes_of_the_control_group(node):
    node.write("/proc/self/cgroup", "0::/pod")
    node.write("/sys/fs/cgroup/pod/pids.max", "128")
    node.write("/sys/fs/cgroup/pod/pids.current", "20")
    found = node.only(check_processes, settings={"nproc_per_node": 8})
    assert (found.status, "control group" in found.found) == (WARNING, True)


@pytest.mark.parametrize(
    ("limit", "pattern", "said"),
    [
        (0, "core", "none are written"),
        (UNLIMITED, "core.%p", "any size"),
        (MIB, "core", "1 MiB"),
        (0, "|/usr/lib/systemd/systemd-coredump %P", "handed to /usr/lib/systemd"),
    ],
)
def test_core_files(node, limit, pattern, said):
    node.machine.limits = {"RLIMIT_CORE": (limit, UNLIMITED)}
    node.write("/proc/sys/kernel/core_pattern", pattern)
    assert said in node.only(check_core_files).found


def test_locked_memory_matters_with_infiniband(node):
    node.machine.limits = {"RLIMIT_MEMLOCK": (8 * MIB, 8 * MIB)}
    assert node.check(check_locked_memory) == []
    node.write("/sys/class/infiniband/mlx5_0")
    assert node.only(check_locked_memory).status is WARNING
    node.machine.limits = {}
    assert node.only(check_locked_memory).status is OK


@pytest.mark.parametrize(
    ("space", "writable", "status"),
    [
        (Space(100 * GIB, 50 * GIB), True, OK),
        (Space(100 * GIB, 50 * GIB, 5), True, WARNING),
        (Space(100 * GIB, 50 * MIB), True, WARNING),
        (Space(100 * GIB, 0), True, PROBLEM),
        (Space(100 * GIB, 50 * GIB, 0), True, PROBLEM),
        (Space(100 * GIB, 50 * GIB), False, PROBLEM),
    ],
)
def test_the_log_folder_has_space_and_is_writable(node, tmp_path, space, writable, status):
    node.machine.spaces = {str(tmp_path): space}
    node.machine.writable = writable
    options = {"log_dir": str(tmp_path / "logs" / "today")}
    node.check_says(status, str(tmp_path), check_log_folder, options=options)


def test_a_log_folder_that_is_a_file(node, tmp_path):
    (tmp_path / "logs").write_text("")
    found = node.only(check_log_folder, options={"log_dir": str(tmp_path / "logs" / "x")})
    assert found.status is PROBLEM


def test_without_a_log_folder_there_is_no_check(node):
    assert node.check(check_log_folder, options={"log_dir": None}) == []


def test_the_folder_for_temporary_files(node, tmp_path):
    (node.root / "tmp").mkdir()
    with tempfile.TemporaryDirectory(prefix="plaunch-") as short:
        (found,) = node.check(check_temporary_folder, environ={"TMPDIR": short})
        assert found.status is OK
    missing, *_, found = node.check(check_temporary_folder, environ={"TMPDIR": "/not/there"})
    assert (missing.status, found.status) == (WARNING, OK)
    long = tmp_path / ("long" * 20)
    long.mkdir()
    first, _ = node.check(check_temporary_folder, environ={"TMPDIR": str(long)})
    assert (first.status, "characters" in first.found) == (WARNING, True)


# --- leftovers ------------------------------------------------------------------------------------


def process(node, pid, ppid, comm, **environ):
    fields = f"{pid} ({comm}) S {ppid} {pid} {pid} 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {pid} 0 0"
    node.write(f"/proc/{pid}/stat", fields)
    node.write(f"/proc/{pid}/comm", comm + "\n")
    node.write(f"/proc/{pid}/cmdline", f"{comm}\0")
    node.write(f"/proc/{pid}/environ", "".join(f"{k}={v}\0" for k, v in environ.items()))


def test_workers_without_their_launcher_are_leftovers(node):
    process(node, 1, 0, "init")
    process(node, 20, 1, "plaunch")
    process(node, 21, 20, "python", PLAUNCH_JOBS="aaaa.0")  # of a running job
    process(node, 22, 21, "loader", PLAUNCH_JOBS="aaaa.0")
    process(node, 30, 1, "python", PLAUNCH_JOBS="outer.0:bbbb.1")
    process(node, 31, 30, "loader", PLAUNCH_JOBS="outer.0:bbbb.1")
    process(node, 40, 1, "python", TORCHELASTIC_RUN_ID="mine")
    found = node.only(check_leftovers)
    assert found.status is WARNING
    assert found.found.startswith("3 process(es)")
    assert "pid 30 (python, job bbbb)" in found.found
    assert "pid 40 (python, torchrun's job mine)" in found.found
    assert "21" not in found.found
    assert "kill 30 31 40" in found.advice


@pytest.mark.parametrize(
    ("first", "parent", "status"),
    [
        ("python", 1, OK),  # the first process of a container, which may be the launcher
        ("bash", 1, WARNING),
        ("systemd", 500, WARNING),  # a user session, which adopts orphans
    ],
)
def test_the_parents_of_orphans(node, first, parent, status):
    process(node, 1, 0, first)
    if parent != 1:
        process(node, parent, 1, first)
    process(node, 501, parent, "python", PLAUNCH_JOBS="bbbb.1")
    assert node.only(check_leftovers).status is status


def test_no_leftovers(node):
    process(node, 1, 0, "init")
    process(node, 2, 1, "bash")
    assert node.only(check_leftovers).found.startswith("none: no process")


# --- the real machine -----------------------------------------------------------------------------


def test_the_real_machine(tmp_path):
    machine = Machine()
    assert machine.processors() >= 1
    assert machine.is_synchronised() in (True, False, None)
    assert machine.space(str(tmp_path)).total > 0
    assert machine.is_writable(str(tmp_path))
    assert not machine.is_writable(str(tmp_path / "missing"))
    assert machine.which("sh", os.environ)
    assert machine.which("sh", {"PATH": str(tmp_path)}) == ""
    assert machine.distribution("pluggy") is not None
    assert machine.distribution("there-is-no-such-package") is None
    assert os.listdir(tmp_path) == []
