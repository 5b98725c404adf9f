"""Which processes belong to a job, decided on tables of processes that are made up."""

from __future__ import annotations

import os
import signal
import subprocess
import threading

import pytest
from plaunch.errors import UsageError
from plaunch.process.marks import ADOPTED
from plaunch.process.proc import Process, check_table, read_children, read_process, read_table
from plaunch.process.stopping.evidence import Origin
from plaunch.process.stopping.job import Reaper
from plaunch.process.stopping.tree import ProcessTree

from helpers.clock import Clock

JOB = "0123456789ab"
ME = os.getpid()
MY_SESSION = os.getsid(0)


class Table:
    """A directory like /proc; process 1 and this process are in it."""

    def __init__(self, folder):
        self.folder = folder
        self.add(1, parent=0)
        self.add(ME, parent=1, session=MY_SESSION)
        (folder / "self").symlink_to(folder / str(ME))

    def add(
        self,
        pid,
        *,
        parent=1,
        session=None,
        group=None,
        start=100,
        state="S",
        threads=1,
        environ="",
        title="program",
        user=None,
    ):
        folder = self.folder / str(pid)
        folder.mkdir(exist_ok=True)
        session = pid if session is None else session
        group = session if group is None else group
        (folder / "stat").write_text(
            f"{pid} (a) S 1 (b) {state} {parent} {group} {session} 0 -1 0 0 0 0 0 0 0 0 0 20 0 "
            f"{threads} 0 {start} 0 0\n"
        )
        (folder / "environ").write_text(environ)
        (folder / "cmdline").write_text(title)
        (folder / "status").write_text(
            f"Name:\tname\nUid:\t{os.getuid() if user is None else user}\t0\n"
        )

    def remove(self, pid):
        for file in (self.folder / str(pid)).iterdir():
            file.unlink()
        (self.folder / str(pid)).rmdir()

    def tree(self, *, leader=None, **options):
        tree = ProcessTree(Origin(job=JOB.encode(), proc=str(self.folder), **options))
        if leader is not None:
            tree.add_leader(0, leader, 100)
        return tree

    def tree_of_worker(self, **options):
        """That of process 5000, a child of this process in a session of its own."""
        self.add(5000, parent=ME)
        return self.tree(leader=5000, **options)

    def tree_of_an_empty_session(self, **options):
        """That of process 5000, whose child has made session 5002 and has ended."""
        tree = self.tree_of_worker(**options)
        self.add(5002, parent=5000)
        tree.scan()
        self.remove(5002)
        return tree


@pytest.fixture
def table(tmp_path):
    return Table(tmp_path)


def numbers(groups):
    return {rank: [process.pid for process in group] for rank, group in groups.items()}


def found(tree):
    return numbers(tree.scan())


def new(tree):
    found, _ = tree.find_new()
    return numbers(found)


def has_missed(tree):
    found, has_missed = tree.find_new()
    assert found == {}
    return has_missed


def adopted(tree):
    return sorted(process.pid for process in tree.adopted(tree.read_inherited()))


def unknown(tree):
    return [process.pid for process in tree.find_unknown(tree.read_inherited())]


def tag(rank, job=JOB):
    return f"PATH=/bin\0PLAUNCH_JOBS={job}.{rank}\0"


def test_a_worker_has_its_session_and_its_descendants(table):
    tree = table.tree_of_worker()
    table.add(5001, parent=5000, session=5000)
    table.add(5002, parent=5000)  # a session of its own
    table.add(5003, parent=5002)
    table.add(5004, parent=1, session=5000)  # an orphan that stayed in the session
    table.add(5005, parent=1, session=5000, group=5005)
    table.add(6000, parent=ME)
    table.add(6001, parent=1)
    tree.add_leader(1, 6000, 100)
    assert found(tree) == {0: [5000, 5001, 5002, 5003, 5004, 5005], 1: [6000]}


OURS = {"environ": tag(0)}
OTHER_USER = os.getuid() + 1

FOUND = {
    "nothing belongs to a job without workers": ({5000: {}}, {}, {}),
    "a number that went to a stranger counts for nothing": (
        {5000: {"start": 200}, 5001: {"parent": 5000, "session": 5000}, 5002: {"parent": 5000}},
        {"leader": 5000},
        {},
    ),
    "the session of a worker that has ended is still its own": (
        {5001: {"session": 5000}},
        {"leader": 5000},
        {0: [5001]},
    ),
    # A worker is in it for a moment, until it has made its own.
    "the launcher's session is nobody's": (
        {5000: {"parent": ME, "session": MY_SESSION}, 5001: {"session": MY_SESSION}},
        {"leader": 5000},
        {0: [5000]},
    ),
    "a tag in the environment is enough": (
        {
            5001: {"environ": tag(1)},
            5002: {"environ": tag(0, job="ffffffffffff")},
            5003: {"parent": 5001},
        },
        {},
        {1: [5001, 5003]},
    ),
    "a tag counts for processes of this user only": ({5001: {**OURS, "user": OTHER_USER}}, {}, {}),
    "what is older than the launcher is not even asked": (
        {5001: {**OURS, "start": 99}, 5002: OURS},
        {"since": 100},
        {0: [5002]},
    ),
    "who is spared is not found and nor are its children": (
        {5000: OURS, 5001: {"parent": 5000}},
        {"spared": {(5000, 100)}},
        {},
    ),
    "zombies are not alive but have a place in the tree": (
        {5000: {"parent": ME, "state": "Z"}, 5001: {"parent": 5000}},
        {"leader": 5000},
        {0: [5001]},
    ),
    "a process whose first thread has ended is alive": (
        {5000: {"parent": ME, "state": "Z", "threads": 3}},
        {"leader": 5000},
        {0: [5000]},
    ),
}


@pytest.mark.parametrize(("processes", "options", "those"), FOUND.values(), ids=FOUND)
def test_those_of_the_job_are_found_and_no_others(table, processes, options, those):
    for pid, process in processes.items():
        table.add(pid, **process)
    assert found(table.tree(**options)) == those


def test_titles_are_only_read_where_workers_are_forked(table):
    table.add(5001, title=f"worker 0 {JOB}.0")
    assert found(table.tree()) == {}
    assert found(table.tree(has_forked=True)) == {0: [5001]}


def test_a_look_is_not_sure_of_a_process_without_an_environment(table):
    """It may be in the middle of becoming another program; threads of the kernel never do."""
    clock = Clock()
    tree = table.tree(since=50, clock=clock)
    table.add(5001, start=49)
    table.add(5002, parent=2)
    table.add(5003, environ="A=1\0")
    table.add(1, environ="A=1\0")
    table.add(5004, state="Z")
    table.add(5006, user=os.getuid() + 1)
    tree.scan()
    assert tree.is_sure()
    table.add(5005)
    assert found(tree) == {}
    assert not tree.is_sure()
    clock.now += 0.3
    assert found(tree) == {}
    assert tree.is_sure()
    table.add(5005, environ=tag(2))
    assert found(tree) == {2: [5005]}
    assert tree.is_sure()


def test_what_was_found_once_stays_known(table):
    tree = table.tree_of_worker()
    table.add(5002, parent=5000)
    table.add(5003, parent=5002)
    assert found(tree) == {0: [5000, 5002, 5003]}
    table.remove(5000)
    table.remove(5002)
    table.add(5003, parent=1, session=5002)
    assert found(tree) == {0: [5003]}
    table.add(5003, parent=1, start=300)  # gone, and its number is somebody else's
    assert found(tree) == {}


def test_sessions_that_a_worker_has_made_are_its_own(table):
    tree = table.tree_of_an_empty_session()
    table.add(5009, parent=1, session=5002)  # appeared meanwhile, and was orphaned at once
    assert found(tree) == {0: [5000, 5009]}


def test_a_session_that_was_empty_once_is_kept(table):
    """Its only member forked and ended while the table was read."""
    clock = Clock()
    tree = table.tree_of_an_empty_session(clock=clock)
    tree.scan()
    clock.now += 0.9
    table.add(5009, parent=1, session=5002)
    assert new(tree) == {0: [5009]}
    table.remove(5009)
    clock.now += 0.9
    tree.scan()
    table.add(5010, parent=1, session=5002)
    assert found(tree) == {0: [5000, 5010]}


def test_a_session_that_stays_empty_is_forgotten(table):
    """Its number is free, and may go to a stranger who has ended, too, before anybody looks."""
    clock = Clock()
    tree = table.tree_of_an_empty_session(clock=clock)
    tree.scan()
    clock.now += 1.0
    tree.scan()
    table.add(5009, parent=1, session=5002)
    assert found(tree) == {0: [5000]}
    table.add(5010, parent=1, session=5002)
    assert new(tree) == {}


def test_the_session_of_a_worker_is_not_forgotten_before_it_has_made_it(table):
    clock = Clock()
    table.add(5000, parent=ME, session=MY_SESSION)
    tree = table.tree(leader=5000, clock=clock)
    for _ in range(3):
        tree.scan()
        clock.now += 1.0
    table.add(5000, parent=ME, state="Z")
    table.add(5001, parent=1, session=5000)
    assert found(tree) == {0: [5001]}


def test_the_number_of_a_group_is_no_evidence(table):
    """A group is always inside its session; in another one it is a stranger's."""
    tree = table.tree_of_an_empty_session()
    table.add(5009, parent=1, session=4000, group=5002)  # of whom number 5002 was the first
    assert found(tree) == {0: [5000]}


def test_this_process_and_its_ancestors_are_never_found(table):
    table.add(3000, parent=1, environ=tag(0))
    table.add(ME, parent=3000, session=3000, environ=tag(0))
    table.add(3001, parent=3000, session=3000, environ=tag(0))
    assert found(table.tree()) == {0: [3001]}


def test_a_number_that_was_spared_is_not_spared_for_ever(table):
    """A guard that was killed, a plugin's child that has ended: a worker's may get the number."""
    tree = table.tree(adopter=ME, spared={(5000, 100), (5009, 100), (5010, 100)})
    table.add(5000, start=200, environ=tag(0))
    assert found(tree) == {0: [5000]}
    table.add(5009, start=200, environ=tag(1))
    assert new(tree) == {1: [5009]}
    table.add(5010, parent=ME, start=200, environ=tag(2))
    children(table, 5010)
    assert unknown(tree) == [5010]
    table.add(5010, parent=ME, environ=tag(2))
    assert unknown(tree) == []


# --- a launcher that inherits orphans -------------------------------------------------------------


def children(table, *pids, thread=ME):
    folder = table.folder / str(ME) / "task" / str(thread)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "children").write_text(" ".join(map(str, pids)))


def own(pid=None):
    return f"PLAUNCH_LAUNCHER={ME if pid is None else pid}\0"


@pytest.mark.parametrize(
    ("child", "is_adopted"),
    [
        ({"session": MY_SESSION}, False),
        ({"session": 4999, "environ": "A=1\0"}, True),
        ({"session": 4999, "environ": own()}, False),  # an orphan of what a plugin has run
        ({"session": 4999}, False),  # in the middle of becoming another program
        ({"environ": "A=1\0"}, True),  # leads a session, without the launcher's variable
        ({"environ": "HOME=/\0"}, False),  # forked by the launcher, and not yet another program
        ({"environ": own()}, False),
        ({"environ": own(1)}, True),
        ({"session": 4999, "state": "Z"}, True),
        ({"state": "Z"}, False),  # it may be a plugin's, which waits for its exit code
    ],
)
def test_orphans_are_distinguished_from_the_launchers_own_children(table, child, is_adopted):
    table.add(ME, parent=1, session=MY_SESSION, environ="HOME=/\0")
    table.add(5001, parent=ME, **child)
    children(table, 5001)
    tree = table.tree(adopter=ME)
    assert adopted(tree) == ([5001] if is_adopted else [])
    is_found = is_adopted and child.get("state") != "Z"
    assert found(tree) == ({ADOPTED: [5001]} if is_found else {})


def test_a_child_without_an_environment_may_still_become_a_plugins_program(table):
    clock = Clock()
    table.add(5001, parent=ME)
    children(table, 5001)
    tree = table.tree(adopter=ME, clock=clock)
    assert adopted(tree) == []
    assert tree.orphans() == {}
    assert not tree.is_sure()
    clock.now += 0.1
    table.add(5001, parent=ME, environ=own())
    assert tree.orphans() == {}
    assert tree.is_sure()


def test_a_child_that_stays_without_an_environment_is_an_orphan(table):
    clock = Clock()
    table.add(5001, parent=ME)
    children(table, 5001)
    tree = table.tree(adopter=ME, clock=clock)
    assert tree.orphans() == {}
    clock.now += 0.3
    assert [process.pid for process in tree.orphans()[ADOPTED]] == [5001]
    assert tree.is_sure()
    assert adopted(tree) == [5001]


def test_what_a_worker_forks_looks_like_the_launcher_where_workers_are_forked(table):
    table.add(ME, parent=1, session=MY_SESSION, environ="HOME=/\0")
    table.add(5001, parent=ME, environ="HOME=/\0")
    children(table, 5001)
    assert found(table.tree(adopter=ME, has_forked=True)) == {ADOPTED: [5001]}


def test_an_orphan_with_a_tag_belongs_to_its_worker(table):
    table.add(5001, parent=ME, environ=tag(3))
    table.add(5002, parent=5001)
    children(table, 5001)
    tree = table.tree(adopter=ME)
    tree.adopted(tree.read_inherited())
    assert found(tree) == {3: [5001, 5002]}


def test_the_descendants_of_orphans_are_orphans(table):
    table.add(5001, parent=ME, environ="A=1\0")
    table.add(5002, parent=5001)
    children(table, 5001)
    assert found(table.tree(adopter=ME)) == {ADOPTED: [5001, 5002]}


def test_without_children_there_is_no_need_to_look(table):
    tree = table.tree_of_worker(adopter=ME, spared={(5009, 100)})
    table.add(7000, environ=tag(0))  # cannot be: it would be a child
    table.add(5009, parent=ME)
    children(table, 5000, 5009)
    assert tree.orphans() == {}
    table.add(7000, parent=ME, environ=tag(0))
    children(table, 5000, 5009, 7000)
    assert [process.pid for process in tree.orphans()[0]] == [5000, 7000]


def test_without_lists_of_children_all_processes_are_read(table):
    tree = table.tree_of_worker(adopter=ME)
    table.add(5001, parent=ME)
    assert read_children(str(table.folder)) is None
    assert unknown(tree) == [5001]


@pytest.mark.parametrize("is_opened", [False, True])
def test_a_thread_that_ends_while_children_are_read_does_not_hide_any(
    table, monkeypatch, is_opened
):
    """Its children are another thread's then, which may have been asked already.

    Who has opened its list by then finds it empty.
    """
    children(table, 5001, thread=1)
    children(table, 5002, thread=2)
    if is_opened:
        children(table, thread=3)
    listed = []

    def list_tasks(path):
        listed.append(path)
        if len(listed) == 1:
            return ["1", "2", "3"]
        children(table, 5001, 5003, thread=1)
        return ["1", "2"]

    monkeypatch.setattr(os, "listdir", list_tasks)
    assert read_children(str(table.folder)) == {5001, 5002, 5003}


def test_a_kernel_without_the_list_is_not_asked_again_and_again(table, monkeypatch):
    for thread in "12":
        (table.folder / str(ME) / "task" / thread).mkdir(parents=True)
    listdir, listed = os.listdir, []
    monkeypatch.setattr(os, "listdir", lambda path: listed.append(path) or listdir(path))
    assert read_children(str(table.folder)) is None
    assert len(listed) == 1


def test_children_of_all_threads_are_read_while_threads_come_and_go():
    """In this very process: each of these has a child for longer than it lives."""
    release = threading.Event()

    def come_and_go():
        while not release.is_set():
            thread = threading.Thread(target=lambda: None)
            thread.start()
            thread.join()

    busy = threading.Thread(target=come_and_go)
    busy.start()
    programs = []
    try:
        start = threading.Thread(target=lambda: programs.append(subprocess.Popen(["sleep", "600"])))
        start.start()
        start.join()
        found = [read_children() for _ in range(200)]
        assert any(children is not None for children in found)
        assert all(children is None or programs[0].pid in children for children in found)
    finally:
        release.set()
        busy.join()
        for program in programs:
            program.kill()
            program.wait()


# --- the first process of a container, which inherits what others leave behind, too ---------------


def test_an_orphan_of_an_unrelated_process_is_not_the_workers(table):
    """Somebody was brought into the container from outside, started a daemon, and is gone."""
    table.add(5001, parent=ME, environ="A=1\0")
    table.add(5002, parent=ME, session=4999, environ="A=1\0")
    table.add(5003, parent=5001, environ="A=1\0")
    children(table, 5001, 5002)
    tree = table.tree(adopter=ME, is_init=True)
    assert adopted(tree) == []
    assert found(tree) == {}
    table.add(5004, parent=ME, environ="A=1\0")
    assert new(tree) == {}


def test_what_is_known_to_be_a_workers_stays_so_when_it_is_inherited(table):
    tree = table.tree_of_worker(adopter=ME, is_init=True)
    table.add(5002, parent=5000, environ="A=1\0")  # seen while its parent lives
    tree.scan()
    table.add(5002, parent=ME, environ="A=1\0")
    table.add(5003, parent=ME, session=5000, environ="A=1\0")  # in a worker's session
    table.add(5004, parent=ME, environ=tag(1))
    table.add(5005, parent=ME, environ="A=1\0")  # cleared, on its own, and never seen before
    children(table, 5000, 5002, 5003, 5004, 5005)
    assert adopted(tree) == [5002, 5003, 5004]
    assert found(tree) == {0: [5000, 5002, 5003], 1: [5004]}


# --- processes that are new since the last scan ---------------------------------------------------


def test_new_processes_are_classified_as_in_a_scan(table):
    tree = table.tree_of_worker(adopter=ME)
    table.add(5001, parent=1)
    assert found(tree) == {0: [5000]}
    assert new(tree) == {}
    table.add(5010, parent=5000)
    table.add(5011, parent=1, session=5000)
    table.add(5012, parent=1, environ=tag(3))
    table.add(5013, parent=ME, session=4998, environ="A=1\0")
    table.add(5014, parent=1, environ="A=1\0")
    table.add(5015, parent=5014)
    assert new(tree) == {0: [5011, 5010], 3: [5012], ADOPTED: [5013]}
    assert new(tree) == {}
    table.add(5016, parent=5013)
    table.add(5017, parent=1, session=5010)
    found_by_rank, is_incomplete = tree.find_new()
    assert numbers(found_by_rank) == {0: [5017], ADOPTED: [5016]}
    assert not is_incomplete


def test_a_new_process_in_an_unrelated_session_is_not_a_workers(table):
    """The worker's session is gone, and a stranger has got its number."""
    table.add(5001, parent=1, session=5000)
    tree = table.tree(leader=5000)
    assert found(tree) == {0: [5001]}
    table.remove(5001)
    table.add(5000, parent=1, start=300)
    table.add(5002, parent=1, session=5000, start=301)
    assert new(tree) == {}


def test_a_process_that_ends_before_it_is_read_counts_as_missed(table):
    tree = table.tree()
    tree.scan()
    table.add(5001, state="Z")
    assert has_missed(tree)
    assert not has_missed(tree)
    table.add(5002)
    (table.folder / "5002" / "stat").unlink()
    assert has_missed(tree)


def test_an_adopter_without_orphans_reads_no_new_processes(table):
    tree = table.tree_of_worker(adopter=ME)
    children(table, 5000)
    assert tree.orphans() == {}
    table.add(5001, parent=5000)
    assert new(tree) == {}
    tree.scan()
    table.add(5002, parent=5000)
    assert new(tree) == {0: [5002]}


# --- reading and signalling -----------------------------------------------------------------------


def test_a_process_is_read_with_all_that_matters(table):
    table.add(5000, parent=7, session=8, group=9, start=4711, state="D")
    process = read_process(5000, str(table.folder))
    assert (process.ppid, process.session, process.pgrp) == (7, 8, 9)
    assert (process.start, process.state, process.is_alive) == (4711, "D", True)
    assert "5000" in repr(process)


@pytest.mark.parametrize("stat", ["", "garbage", "5000 (name) S 1", "5000 (n) S a b c"])
def test_what_cannot_be_read_is_left_out(table, stat):
    table.add(5000)
    (table.folder / "5000" / "stat").write_text(stat)
    assert read_process(5000, str(table.folder)) is None
    assert sorted(read_table(str(table.folder))) == sorted([1, ME])


def test_the_real_table_has_this_process():
    own = read_table()[ME]
    assert (own.ppid, own.session, own.is_alive) == (os.getppid(), MY_SESSION, True)
    check_table()


def test_without_a_table_nothing_starts(tmp_path):
    proc = str(tmp_path)
    assert read_table(proc) == {}
    with pytest.raises(UsageError, match=r"does not show processes here, .* mount -t proc proc "):
        check_table(proc)
    with pytest.raises(UsageError, match="does not show processes here"):
        Reaper(proc=proc).begin()


@pytest.mark.parametrize("has_pidfds", [True, False])
def test_a_signal_goes_to_the_very_process_only(run_program, monkeypatch, has_pidfds):
    if not has_pidfds:
        monkeypatch.delattr(os, "pidfd_open")
    program = run_program("-c", "input()", stdin=-1)
    process = read_process(program.pid)
    stranger = Process(program.pid, start=process.start - 1)
    assert not stranger.send_signal(9)
    assert program.poll() is None
    assert process.send_signal(9)
    monkeypatch.undo()  # `wait` may need what the process must not
    assert program.wait(60) == -9
    assert not process.send_signal(9)


def test_a_group_is_not_killed_for_a_member_whose_number_was_reused(table, run_program):
    program = run_program("-c", "open(0).read()", stdin=-1, start_new_session=True)
    table.add(program.pid, start=200)
    tree = table.tree()
    tree.add_leader(0, program.pid, 200)
    gone = Process(program.pid, ME, program.pid, program.pid, "S", 100)
    assert tree.signal([gone], signal.SIGKILL) == []
    program.communicate(timeout=60)
    assert program.returncode == 0
