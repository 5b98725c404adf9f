"""What is kept of many lines."""

from __future__ import annotations

import itertools
import signal

import pytest
from plaunch.process import shorten

from helpers.tracebacks import DIRECT, HEADER, TORCH, WHILE, failure_with, frames

ME = "/home/me/train.py"
STATE_DICT = "RuntimeError: Error(s) in loading state_dict for Net:"


def test_few_lines_stay_as_they_are() -> None:
    assert shorten(["a", "b"], 2) == ["a", "b"]


def test_of_output_the_last_lines_stay() -> None:
    assert shorten([str(n) for n in range(50)], 3) == ["47", "48", "49"]


@pytest.mark.parametrize("mark", ["", "[rank3]: "])
def test_a_traceback_keeps_its_head_the_users_frames_and_the_exception(mark) -> None:
    own = frames(ME, 80, 39)
    after = [f"frame #{n}: c10d::work()" for n in range(30)]
    lines = [HEADER, *own, *frames(TORCH, *range(40)), "RuntimeError: closed", *after]
    lines = ["step 1", *(mark + line for line in lines)]
    kept = shorten(lines, 20)
    assert len(kept) == 20
    assert kept[:5] == [mark + line for line in (HEADER, *own)]
    assert kept[5].strip() == "... 80 lines left out ..."
    assert kept[6] == f"{mark}RuntimeError: closed"
    assert kept[-1] == mark + after[-1]
    assert failure_with(kept).headline == "RuntimeError: closed (train.py:39)"


def test_of_many_own_frames_the_last_ones_stay() -> None:
    own = frames(ME, *range(100))
    kept = shorten([HEADER, *own, "E: no"], 10)
    assert kept[-1] == "E: no"
    assert own[-2] in kept
    assert own[0] not in kept
    assert len(kept) <= 10


@pytest.mark.parametrize(
    "log",
    [
        "[rank0]:[W1124 10:22:33.12 ProcessGroupNCCL.cpp:1683] no checkpoint",
        "node-b:123:456 [0] NCCL INFO no checkpoint",
        "2026-01-31 08:15:00,250 INFO no checkpoint",
        "WARNING:root:no checkpoint",
    ],
)
def test_what_was_caught_long_before_makes_no_room(log) -> None:
    caught = [HEADER, *frames(ME, 1), "KeyError: 1"]
    lines = [*caught, log, *(f"step {n}" for n in range(30))]
    assert shorten(lines, 20) == lines[-20:]


@pytest.mark.parametrize("mark", ["", "[rank3]: "])
@pytest.mark.parametrize("indent", ["\t", "", "        "])
def test_a_long_message_keeps_its_exception(mark, indent) -> None:
    message = [f'{indent}size mismatch for layers.{n}: torch.Size([{n}])."' for n in range(60)]
    lines = [HEADER, *frames(ME, 39), *frames(TORCH, *range(9)), STATE_DICT, *message]
    kept = shorten(["step 1", *(mark + line for line in lines)], 20)
    assert failure_with(kept).headline == f"{STATE_DICT} (train.py:39)"
    assert kept[-1] == mark + message[-1]


def test_tracebacks_of_threads_do_not_displace_that_of_the_process() -> None:
    thread = [HEADER, *frames("/home/me/data.py", *range(9)), "KeyError: 't'"]
    for count in range(1, 6):
        asides = [line for n in range(count) for line in (f"Exception in thread {n}:", *thread)]
        kept = shorten([HEADER, *frames(ME, 39), "ValueError: bad", *asides], 20)
        assert failure_with(kept).headline == "ValueError: bad (train.py:39)"
    assert failure_with(shorten(asides, 20)).headline == "exit code 1"


GLOO = "RuntimeError: [/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:5"
CALLS = [*frames(ME, 24), *frames(TORCH, *range(12))]
LINKS = list(itertools.product([DIRECT, WHILE], repeat=2))


@pytest.mark.parametrize("links", [(), *((link,) for link in (DIRECT, WHILE)), *LINKS])
@pytest.mark.parametrize("message", [[], [f"\tsize {n}" for n in range(40)]])
@pytest.mark.parametrize("original", [[], [f"Original {HEADER}", *CALLS, "OSError: no shard"]])
@pytest.mark.parametrize("threads", range(4))
def test_an_excerpt_has_the_headline_of_the_whole(links, message, original, threads) -> None:
    lines = [f"step {n}" for n in range(9)]
    for number, link in enumerate(["", *links]):
        lines += ["", link, "", HEADER, *CALLS, f"ValueError: bad {number}" if number else GLOO]
    lines += [*message, *original]
    for _ in range(threads):
        thread = ["Exception in thread Thread-1:", HEADER, *CALLS, "KeyError: 't'"]
        lines += [*thread, "", WHILE, "", HEADER, *CALLS, "KeyError: 'u'"]
    whole, kept = failure_with(lines), failure_with(shorten(lines, 20))
    assert kept.headline == whole.headline
    assert kept.consequence == whole.consequence


def test_an_excerpt_keeps_the_message_of_a_cpp_exception() -> None:
    what = "  what():  [Rank 0] Watchdog caught collective operation timeout"
    lines = ["step 1", "terminate called after throwing an instance of 'E'", what]
    lines += [f"frame #{n}: c10d::work()" for n in range(40)]
    assert what in shorten(lines, 20)


@pytest.mark.parametrize("most", [40, 200, 500])
def test_characters_are_bounded_too(most) -> None:
    lines = [HEADER, *frames(ME, 39), *frames(TORCH, *range(40)), "E: no"]
    kept = shorten(lines, 1000, most)
    assert sum(len(line) + 1 for line in kept) <= most
    assert kept[-1] == "E: no"
    assert (most < 200) or any("train.py" in line for line in kept)
    assert shorten(["x" * 1000], 5, most) == ["x" * most]


class CountedLines(list):
    """Lines that count how often one of them is read."""

    reads = 0

    def __getitem__(self, index):
        self.reads += 1
        return super().__getitem__(index)

    def __iter__(self):
        self.reads += len(self)
        return super().__iter__()


@pytest.mark.parametrize(
    "lines",
    [
        [HEADER, *frames(ME, *range(10_000)), "RecursionError: too deep"],
        ["", "x"] * 10_000,
        [HEADER, *frames(ME, 1), "E: no", *[""] * 20_000],
    ],
    ids=["recursion", "output", "empty lines"],
)
def test_each_line_is_read_a_few_times_however_many_there_are(lines) -> None:
    counted = CountedLines(lines)
    kept = shorten(counted, len(lines), 8192)
    assert 0 < sum(len(line) + 1 for line in kept) <= 8192
    assert counted.reads < 10 * len(lines)


@pytest.mark.parametrize("deep", [1, 60], ids=["flat", "deep"])
@pytest.mark.parametrize("threads", [0, 50])
@pytest.mark.parametrize("native", [0, 40])
def test_a_dump_of_a_crash_keeps_the_fault_and_the_users_frame(deep, threads, native) -> None:
    """From Python 3.14 on, the frames in C follow those in Python."""
    dump = ["Fatal Python error: Segmentation fault", ""]
    for thread in range(threads):
        dump += [
            f"Thread 0x{thread:x} (most recent call first):",
            '  File "/usr/lib/python3.14/threading.py", line 1 in wait',
            "",
        ]
    dump += [
        "Current thread 0x1f [train.py:0] (most recent call first):",
        '  File "/usr/lib/python3.14/ctypes/__init__.py", line 624 in string_at',
        *(f'  File "{ME}", line {7 + n} in step' for n in range(deep)),
        "",
    ]
    if native:
        dump += [
            "Current thread's C stack trace (most recent call first):",
            *('  Binary file "python3", at _Py_DumpStack+0x4a [0x49b2f9]' for _ in range(native)),
            "  <truncated rest of calls>",
            "",
        ]
    dump += ["Extension modules: numpy._core (total: 1)"]
    lines = [*(f"step {n}" for n in range(50)), *dump]
    kept = shorten(lines, 20)
    assert len(kept) <= 20
    assert dump[0] in kept
    assert "step 49" in kept
    crash = failure_with(kept, -signal.SIGSEGV)
    assert crash.headline == "killed by SIGSEGV (signal 11) (train.py:7)"
    assert crash.headline == failure_with(lines, -signal.SIGSEGV).headline


def test_a_dump_of_another_process_makes_no_room() -> None:
    lines = ["Fatal Python error: Aborted", "", "Stack (most recent call first):"]
    lines += [f'  File "{ME}", line {n} in step' for n in range(9)]
    lines += [f"step {n}" for n in range(30)]
    assert shorten(lines, 20) == lines[-20:]
