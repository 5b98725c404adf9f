"""Teed output under faults: no line is lost, truncated or out of order."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import re
import signal
import subprocess
import threading

import pytest

from helpers.machine_parts import need
from helpers.programs import end_launch
from helpers.waiting import BOUND, wait_until

RUNS = int(os.environ.get("CHAOS_RUNS", "8"))  # of the same launch with a killed worker


class Launch:
    """A launch with teed streams, whose console is read at full speed."""

    def __init__(self, plaunch, script, *argv, nprocs=2, prefix=(), stderr=subprocess.PIPE):
        words = [f"--nproc-per-node={nprocs}", "--tee=3", *argv, script]
        options = {"stdout": subprocess.PIPE, "stderr": stderr, "start_new_session": True}
        self._process = plaunch.popen(*words, within=prefix, **options)
        self.stdout = self.stderr = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        self.stdout, self.stderr = self._process.communicate()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        end_launch(self._process)
        self._reader.join(BOUND)

    def wait(self):
        self._reader.join(BOUND)
        assert not self._reader.is_alive(), "the launcher does not end"
        return self._process.returncode

    def wait_for(self, condition):
        def happens():
            assert self._process.poll() is None, self.stderr
            return condition()

        wait_until(happens, "what is waited for")


def console_lines(data, rank):
    """The lines of one rank on the console, without their prefix."""
    prefix = b"[default%d]:" % rank
    return [line.removeprefix(prefix) for line in data.splitlines(True) if line.startswith(prefix)]


# --- a worker is killed while it writes -----------------------------------------------------------

# Writes lines of many lengths forever, and counts them in a shared file, which survives the worker.
# One more line than counted may have been written.
COUNTING = """\
import mmap, os, random
rank = int(os.environ["RANK"])
choose = random.Random(rank)
lengths = [choose.choice((0, 10, 100, 1000, 5000, 20000)) for _ in range(997)]
with open(f"count-{rank}.new", "w+b") as file:
    file.truncate(8)
    shared = mmap.mmap(file.fileno(), 8)
os.rename(file.name, f"count-{rank}")
with open(f"pid-{rank}.new", "w") as file:
    file.write(str(os.getpid()))
os.rename(file.name, f"pid-{rank}")
number = 0
while True:
    os.write(1, b"%d %s\\n" % (number, b"x" * lengths[number % 997]))
    number += 1
    shared[:] = number.to_bytes(8, "little")
"""


def lengths_of(rank):
    choose = random.Random(rank)
    return [choose.choice((0, 10, 100, 1000, 5000, 20000)) for _ in range(997)]


class Counter:
    """Return the number of lines that a worker has written, from its shared file."""

    def __init__(self, folder, rank):
        with (folder / f"count-{rank}").open("rb") as file:
            self._shared = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)

    def __call__(self):
        return int.from_bytes(self._shared[:], "little")

    def close(self):
        self._shared.close()


def check_lines(lines, count, rank):
    """All `count` lines are there; at most the beginning of one more follows."""
    lengths = lengths_of(rank)
    expected = [b"%d %s\n" % (number, b"x" * lengths[number % 997]) for number in range(count + 1)]
    assert lines[:count] == expected[:count]
    assert len(lines) <= count + 1
    if len(lines) > count:
        assert expected[count].startswith(lines[count].removesuffix(b"\n"))


@pytest.mark.parametrize("run", range(RUNS))
def test_no_line_of_a_worker_killed_while_writing_is_lost(plaunch, run):
    script = plaunch.write("count.py", COUNTING)
    choose = random.Random(run)
    with (
        contextlib.ExitStack() as stack,
        Launch(plaunch, script, f"--log-dir={plaunch.folder / 'logs'}") as launch,
    ):
        names = ["count-0", "count-1", "pid-0", "pid-1"]
        launch.wait_for(lambda: all((plaunch.folder / name).exists() for name in names))
        counters = [Counter(plaunch.folder, rank) for rank in range(2)]
        for counter in counters:
            stack.callback(counter.close)
        goal = choose.randrange(1, 1000)
        launch.wait_for(lambda: counters[1]() >= goal)
        os.kill(int((plaunch.folder / "pid-1").read_text()), signal.SIGKILL)
        assert launch.wait() == 128 + signal.SIGKILL
        counts = [counter() for counter in counters]
    assert counts[1] >= goal
    for rank in range(2):
        (log,) = (plaunch.folder / "logs").glob(f"*/attempt_0/{rank}/stdout.log")
        check_lines(log.read_bytes().splitlines(True), counts[rank], rank)
        check_lines(console_lines(launch.stdout, rank), counts[rank], rank)
    # The console shows whole lines of the workers only.
    assert launch.stdout.endswith(b"\n")
    shown = sum(len(console_lines(launch.stdout, rank)) for rank in range(2))
    assert launch.stdout.count(b"\n") == shown


# --- output ---------------------------------------------------------------------------------------

# Long lines, each in several writes, by all workers at once.
DRIBBLE = """\
import os
rank = os.environ["RANK"].encode()
for number in range(40):
    line = b"%s %d " % (rank, number) + rank * 20_000 + b"\\n"
    for begin in range(0, len(line), 7001):
        os.write(1 + number % 2, line[begin:begin + 7001])
"""


@pytest.mark.parametrize("together", [False, True], ids=["apart", "2>&1"])
def test_long_lines_of_eight_workers_do_not_mix(plaunch, together):
    script = plaunch.write("dribble.py", DRIBBLE)
    stderr = subprocess.STDOUT if together else subprocess.PIPE
    with Launch(plaunch, script, "--log-dir=/dev/null", nprocs=8, stderr=stderr) as launch:
        assert launch.wait() == 0
    shown = {}
    for data, parities in ((launch.stdout, (0, 1) if together else (0,)), (launch.stderr, (1,))):
        for line in (data or b"").splitlines():
            match = re.fullmatch(rb"\[default(\d)\]:\1 (\d+) \1{20000}", line)
            assert match, line[:100]
            rank, number = map(int, match.groups())
            assert number % 2 in parities
            shown.setdefault((rank, number % 2), []).append(number)
    assert shown == {
        (rank, parity): list(range(parity, 40, 2)) for rank in range(8) for parity in range(2)
    }


BARS = rb"""
import os
for percent in range(0, 101, 20):
    os.write(1, b"%3d %%|" % percent + b"#" * (percent // 10) + b"\r")
os.write(1, b"\ndone \xff\xfe\x80 \xe2\x82\r\nno end")
"""


def test_progress_bars_invalid_text_and_a_missing_line_end(plaunch):
    """Every state of a bar has the prefix and its carriage return; bytes are passed on as is."""
    script = plaunch.folder / "bars.py"
    script.write_bytes(BARS)
    with Launch(plaunch, script, f"--log-dir={plaunch.folder / 'logs'}", nprocs=1) as launch:
        assert launch.wait() == 0
    states = [b"%3d %%|" % percent + b"#" * (percent // 10) for percent in range(0, 101, 20)]
    end = b"done \xff\xfe\x80 \xe2\x82\r\n"
    prefix = b"[default0]:"
    bars = b"".join(prefix + state + b"\r" for state in states[:-1])
    assert launch.stdout == (
        bars + prefix + states[-1] + b"\r\n" + prefix + end + prefix + b"no end\n"
    )
    (log,) = (plaunch.folder / "logs").glob("*/attempt_0/0/stdout.log")
    assert log.read_bytes() == b"".join(s + b"\r" for s in states) + b"\n" + end + b"no end"


# --- full disks -----------------------------------------------------------------------------------

FILL = """\
import os
for number in range(40_000):
    os.write(1, b"%63d\\n" % number)
open("done", "w").close()
"""


@contextlib.contextmanager
def file_size_limit(plaunch):
    """A limit of 1 MiB per file: the system's own equivalent of a full disk."""
    yield plaunch.folder / "logs", ["bash", "-c", 'ulimit -f 1024; exec "$@"', "bash"]


@contextlib.contextmanager
def small_disk(plaunch):
    """A file system of 1 MiB."""
    folder = plaunch.folder / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    need("mounts")
    subprocess.run(mount, check=True)
    try:
        yield folder, []
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("disk", [file_size_limit, small_disk], ids=lambda disk: disk.__name__)
def test_a_full_disk_costs_lines_in_the_file_but_not_the_job(plaunch, disk):
    script = plaunch.write("fill.py", FILL)
    with disk(plaunch) as (logs, prefix):
        with Launch(plaunch, script, f"--log-dir={logs}", nprocs=1, prefix=prefix) as launch:
            assert launch.wait() == 0, launch.stderr
        (log,) = logs.glob("*/attempt_0/0/stdout.log")
        kept = log.read_bytes().splitlines()
    assert (plaunch.folder / "done").exists()
    expected = [b"%63d" % number for number in range(40_000)]
    assert console_lines(launch.stdout, 0) == [line + b"\n" for line in expected]
    # The lines before the disk was full are complete, and the loss is reported.
    assert 10_000 < len(kept) < 40_000
    assert kept[:-1] == expected[: len(kept) - 1]
    match = re.search(rb"lines missing in '.*/0/stdout.log': (\d+)", launch.stderr)
    assert match, launch.stderr
    assert int(match[1]) + len([line for line in kept if len(line) == 63]) == 40_000
    assert launch.stderr.count(b"cannot write to") == 1


# --- large output ---------------------------------------------------------------------------------

POUR = """\
import os, sys
block = b"".join(b"%063d\\n" % number for number in range(1024))
for _ in range(int(sys.argv[1])):
    os.write(1, block)
"""


@pytest.mark.exhaustive
@pytest.mark.slow
def test_gigabytes_pass_through_a_launcher_that_stays_small(plaunch):
    """2 GiB from two workers, whose only reader counts the bytes; memory stays bounded."""
    script = plaunch.write("pour.py", POUR)
    blocks = 16 * 1024  # of 64 KiB: 1 GiB
    logs = plaunch.folder / "logs"
    argv = ["--nproc-per-node=2", "--tee=3", f"--log-dir={logs}", "--log-line-prefix-template=>"]
    with plaunch.popen(*argv, script, str(blocks), stdout=subprocess.PIPE) as process:
        try:
            size = newlines = seen = peak = 0
            while data := os.read(process.stdout.fileno(), 1 << 20):
                size += len(data)
                newlines += data.count(b"\n")
                if size > seen + (16 << 20):
                    seen, peak = size, max(peak, high_water(process.pid))
            assert process.wait(BOUND) == 0
        except BaseException:
            process.terminate()
            raise
    assert newlines == 2 * blocks * 1024
    assert size == newlines * 65
    assert 0 < peak < 100_000
    for log in logs.glob("*/attempt_0/*/stdout.log"):
        assert log.stat().st_size == 1 << 30
        log.unlink()


def high_water(pid):
    """The peak memory of a process in kB; 0 if it has ended."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    return 0
