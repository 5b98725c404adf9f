"""The out-of-memory killer's counters, on made-up trees."""

from __future__ import annotations

import pytest
from plaunch.process.outcomes import OutOfMemoryWatch


def write(root, path, text):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


V2 = "low 0\nhigh 0\nmax 12\noom 3\noom_kill {}\noom_group_kill 0\n"
V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"
VMSTAT = "nr_free_pages 5\noom_kill {}\n"

TREES = {
    "version 2": ("0::/jobs/a\n", "sys/fs/cgroup/jobs/a/memory.events", V2),
    "version 2 in a container": ("0::/../host/path\n", "sys/fs/cgroup/memory.events", V2),
    "version 1": (
        "5:devices:/x\n4:memory:/jobs/a\n0::/\n",
        "sys/fs/cgroup/memory/jobs/a/memory.oom_control",
        V1,
    ),
    "version 1 in a container": (
        "4:memory:/docker/ab\n",
        "sys/fs/cgroup/memory/memory.oom_control",
        V1,
    ),
    "version 1, mounted with others": (
        "4:memory,hugetlb:/jobs/a\n",
        "sys/fs/cgroup/memory,hugetlb/jobs/a/memory.oom_control",
        V1,
    ),
    "a group that does not count memory": (
        "0::/jobs/a\n",
        "sys/fs/cgroup/jobs/memory.events",
        V2,
    ),
    "no group counts": ("", "proc/vmstat", VMSTAT),
}


@pytest.mark.parametrize("name", TREES)
def test_a_counter_that_moves_is_noticed(tmp_path, name):
    groups, path, text = TREES[name]
    write(tmp_path, "proc/self/cgroup", groups)
    write(tmp_path, path, text.format(7))
    watch = OutOfMemoryWatch(str(tmp_path))
    assert not watch.has_killed()
    write(tmp_path, path, text.format(8))
    assert watch.has_killed()
    assert watch.has_killed(), "others may be asked about, too"


def test_the_groups_own_counter_comes_before_the_systems(tmp_path):
    """Somebody else's death is no reason to blame the killer for ours."""
    write(tmp_path, "proc/self/cgroup", "0::/jobs/a\n")
    write(tmp_path, "sys/fs/cgroup/jobs/a/memory.events", V2.format(0))
    write(tmp_path, "proc/vmstat", VMSTAT.format(1))
    watch = OutOfMemoryWatch(str(tmp_path))
    write(tmp_path, "proc/vmstat", VMSTAT.format(2))
    assert not watch.has_killed()


@pytest.mark.parametrize("text", ["", "oom_kill\n", "oom_kill many\n", "\x00\xff"])
def test_without_a_counter_nothing_is_claimed(tmp_path, text):
    write(tmp_path, "proc/vmstat", text)
    watch = OutOfMemoryWatch(str(tmp_path))
    assert not watch.has_killed()


def test_a_counter_that_goes_away_claims_nothing(tmp_path):
    write(tmp_path, "proc/vmstat", VMSTAT.format(1))
    watch = OutOfMemoryWatch(str(tmp_path))
    (tmp_path / "proc/vmstat").unlink()
    assert not watch.has_killed()
    write(tmp_path, "proc/vmstat", VMSTAT.format(9))
    assert not watch.has_killed()


def test_this_systems_counters_can_be_read():
    assert not OutOfMemoryWatch().has_killed()
