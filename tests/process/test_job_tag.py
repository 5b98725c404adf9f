"""The tags by which processes are known, in environments and in titles."""

from __future__ import annotations

import os

import pytest
from plaunch.process import job_tag, proc

from helpers.waiting import wait_until

JOB = b"0123456789ab"


def test_a_worker_has_one_tag_and_one_within_a_worker_has_both():
    assert job_tag.make_tags("0123456789ab", 3, None) == "0123456789ab.3"
    assert job_tag.make_tags("0123456789ab", 3, "") == "0123456789ab.3"
    outer = job_tag.make_tags("aaaaaaaaaaaa", 0, None)
    both = job_tag.make_tags("bbbbbbbbbbbb", 1, outer)
    environ = f"PATH=/bin\0PLAUNCH_JOBS={both}\0".encode()
    assert job_tag.find_rank(environ, b"aaaaaaaaaaaa") == 0
    assert job_tag.find_rank(environ, b"bbbbbbbbbbbb") == 1


def test_names_of_jobs_are_not_made_twice():
    names = {job_tag.make_job_id() for _ in range(1000)}
    assert len(names) == 1000
    assert {len(name) for name in names} == {12}


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        (b"PLAUNCH_JOBS=0123456789ab.0\0", 0),
        (b"PLAUNCH_JOBS=0123456789ab.17", 17),
        (b"A=1\0PLAUNCH_JOBS=ffffffffffff.1:0123456789ab.2:eeeeeeeeeeee.3\0B=2\0", 2),
        (b"", None),
        (b"PLAUNCH_JOBS=\0", None),
        (b"PLAUNCH_JOBS=0123456789ab\0", None),
        (b"PLAUNCH_JOBS=0123456789ab.\0", None),
        (b"PLAUNCH_JOBS=0123456789ab.x\0", None),
        (b"PLAUNCH_JOBS=0123456789abc.1\0", None),
        (b"PLAUNCH_JOBS=00123456789ab.1\0", None),
        (b"MY_PLAUNCH_JOBS=0123456789ab.1\0", None),
        (b"TEXT=PLAUNCH_JOBS=0123456789ab.1\0", None),
    ],
)
def test_only_the_very_tag_counts(environ, rank):
    assert job_tag.find_rank(environ, JOB) == rank


@pytest.mark.parametrize(
    ("title", "rank"),
    [
        (b"worker 3 ffffffffffff.1:0123456789ab.3\0\0\0", 3),
        (b"0123456789ab.0\0", 0),
        (b"python\0train.py\0", None),
        (b"grep\x000123456789ab\0", None),
        (b"x0123456789ab.0", None),
    ],
)
def test_a_title_has_tags_too(title, rank):
    assert job_tag.find_rank_in_title(title, JOB) == rank


def test_environments_are_read(sleep):
    program = sleep(env={"PLAUNCH_JOBS": "0123456789ab.5"})
    # The kernel shows none for a moment, in the middle of making it another program.
    wait_until(lambda: proc.read_environ(program.pid), "it has an environment")
    assert job_tag.find_rank(proc.read_environ(program.pid), JOB) == 5
    assert proc.read_proc(f"{program.pid}/cmdline") == b"sleep\x00600\x00"
    assert proc.read_user(program.pid) == os.getuid()
    program.kill()
    program.wait()
    assert proc.read_environ(program.pid) == b""
    assert proc.read_user(program.pid) == -1
