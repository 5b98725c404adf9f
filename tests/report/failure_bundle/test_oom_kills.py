"""Whose processes the kernel has killed for lack of memory."""

from __future__ import annotations

import pytest
from plaunch_report.failure_bundle.oom_kills import JobProcesses, KillSorter, Owner

JOB = JobProcesses({42, 43}, "/slurm/job_7/step_0")


def kill(pid, group="/slurm/job_8", limited="/slurm/job_8", constraint="MEMCG"):
    """The lines of one kill, as Linux 6.1 writes them."""
    return [
        "[10.0] python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        f"[10.0] oom-kill:constraint=CONSTRAINT_{constraint},nodemask=(null),cpuset=/,"
        f"mems_allowed=0,oom_memcg={limited},task_memcg={group},task=python,pid={pid},uid=0",
        f"[10.0] Memory cgroup out of memory: Killed process {pid} (python) total-vm:1kB, UID:0",
        f"[10.1] oom_reaper: reaped process {pid} (python), now anon-rss:0kB, file-rss:0kB",
    ]


def sort(lines, job=JOB):
    kills = KillSorter(job)
    return [*kills.select(lines)], {o: pids for o, pids in kills.victims.items() if pids}, kills


def test_only_the_kills_of_this_job_are_shown():
    device = "[10.0] NVRM: Xid (PCI:0000:3b:00): 79, pid=77, GPU has fallen off the bus"
    lines = [*kill(42), *kill(9), device, *kill(10), *kill(43)]
    shown, victims, kills = sort(lines)
    assert shown == [*kill(42), device, *kill(43)]
    assert victims == {Owner.JOB: [42, 43], Owner.OTHER: [9, 10]}
    assert [*kills.describe()] == [
        "killed for lack of memory, of other control groups, whose lines are left out: 2"
    ]


@pytest.mark.parametrize(
    ("group", "limited"),
    [
        ("/slurm/job_7/step_0", "/slurm/job_7"),
        ("/slurm/job_7/step_0/task_1", "/slurm/job_7/step_0"),
        ("/slurm/job_7/step_1", "/slurm/job_7"),  # a limit of this job, too
        ("/slurm/job_7/step_0", "/"),
    ],
)
def test_a_process_near_the_workers_is_shown_and_named(group, limited):
    shown, victims, kills = sort(kill(9, group, limited))
    assert shown == kill(9, group, limited)
    assert victims == {Owner.GROUP: [9]}
    [line] = kills.describe()
    assert "not workers of this job" in line
    assert line.endswith(": 9")


@pytest.mark.parametrize(
    ("group", "limited"),
    [
        ("/slurm/job_7/step_01", "/slurm/job_7/step_01"),
        ("/system.slice/ssh", "/"),
        ("/", "/"),
        ("/slurm/job_70/step_0", "/slurm/job_70"),
    ],
)
def test_a_process_of_another_group_is_left_out(group, limited):
    assert sort(kill(9, group, limited))[:2] == ([], {Owner.OTHER: [9]})


@pytest.mark.parametrize(
    ("group", "owner"), [("/slurm/job_8", Owner.OTHER), ("/slurm/job_7/step_0", Owner.GROUP)]
)
def test_processes_that_are_killed_together_have_the_same_owner(group, owner):
    together = [
        *kill(9, group, group),
        f"[10.2] Tasks in {group} are going to be killed due to memory.oom.group set",
        "[10.3] Memory cgroup out of memory: Killed process 10 (python)",
        "[10.4] Memory cgroup out of memory: Killed process 11 (sh)",
    ]
    shown, victims, _ = sort([*together, *kill(12, "/else", "/else")])
    assert shown == ([] if owner is Owner.OTHER else together)
    assert victims[owner][:3] == [9, 10, 11]


@pytest.mark.parametrize(
    ("lines", "job"),
    [
        (kill(9)[2:], JOB),  # old kernels name no group
        (kill(9), JobProcesses((), None)),  # in a container
        (["[10.0] Out of memory: Killed process 9 (python)"], JOB),
    ],
)
def test_what_cannot_be_attributed_is_shown_and_named(lines, job):
    shown, victims, kills = sort(lines, job)
    assert (shown, victims) == (lines, {Owner.UNKNOWN: [9]})
    assert "cannot be attributed" in next(kills.describe())


def test_a_kill_without_a_process_is_shown():
    lines = ["[10.0] Out of memory and no killable processes..."]
    assert sort(lines)[:2] == (lines, {})


HOST = {"pid": "pid:[4026531836]", "cgroup": "cgroup:[4026531835]"}


@pytest.mark.parametrize(
    ("namespaces", "groups", "job"),
    [
        (HOST, "0::/slurm/job_7\n", JobProcesses({1}, "/slurm/job_7")),
        (HOST, "5:cpu:/x\n4:memory:/job\n0::/y\n", JobProcesses({1}, "/job")),
        (HOST, "", JobProcesses({1}, None)),
        ({}, "0::/job\n", JobProcesses({1}, "/job")),
        ({**HOST, "pid": "pid:[7]"}, "0::/job\n", JobProcesses((), "/job")),
        ({**HOST, "cgroup": "cgroup:[7]"}, "0::/\n", JobProcesses({1}, None)),
    ],
)
def test_what_identifies_a_job(namespaces, groups, job):
    def readlink(path):
        name = path.removeprefix("/proc/self/ns/")
        if name not in namespaces:
            raise FileNotFoundError(path)
        return namespaces[name]

    assert JobProcesses.here({1}, lambda path: groups, readlink) == job


def test_this_process_can_be_identified():
    assert JobProcesses.here({1}).group != ""
