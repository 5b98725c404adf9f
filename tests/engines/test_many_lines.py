"""All lines of all nodes arrive, however busy the machine is, and whatever its readers do.

Two variables make the test larger: CHAOS_LINES, the lines of each of four nodes (20,000), and
CHAOS_LOAD, the number of programs that keep the processors busy (none).
"""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

LINES = int(os.environ.get("CHAOS_LINES", "20000"))
LOAD = int(os.environ.get("CHAOS_LOAD", "0"))
NODES = 4
LATE = 200_000  # bytes that the reader leaves until all agents have ended; the command holds more
PAUSE = 0.3  # seconds for which the command is suspended, and the reader does not read

WRITING = """\
import os, sys
rank, lines = os.environ["RANK"], int(sys.argv[1])
for begin in range(0, lines, 50):
    text = "".join(f"{rank} {number}\\n" for number in range(begin, min(begin + 50, lines)))
    data = text.encode()
    while data:
        data = data[os.write(1, data):]
    os.write(2, f"{rank} wrote {begin}\\n".encode())
"""


@pytest.fixture
def load():
    """Keep the processors busy."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(LOAD)]
    yield
    for each in busy:
        each.kill()
        each.wait()


@pytest.fixture
def pipe():
    fds = os.pipe()
    yield fds
    os.close(fds[0])


def suspend(job):
    """Let the command make no progress for a while."""
    job.process.send_signal(signal.SIGSTOP)
    time.sleep(PAUSE)
    job.process.send_signal(signal.SIGCONT)


@pytest.mark.usefixtures("load")
def test_all_lines_arrive_in_order(launch, pipe, record_property):
    reader, writer = pipe
    (launch.folder / "write.py").write_text(WRITING)
    words = [f"--on=local:{NODES}", "--nproc-per-node=1", "write.py", LINES]
    job = launch(*words, stdout=writer)
    os.close(writer)
    began = time.monotonic()
    numbers = [
        f"[node{rank}] {rank} {number}\n" for rank in range(NODES) for number in range(LINES)
    ]
    size = sum(map(len, numbers))
    parts, arrived, next_pause = [], 0, size // 5
    while arrived < size - LATE:
        parts.append(os.read(reader, 1 << 16))
        assert parts[-1], job.err
        arrived += len(parts[-1])
        if arrived >= next_pause:
            next_pause += size // 5
            suspend(job)
            time.sleep(PAUSE)
    job.wait_for("waiting for the reader of the output, which has not taken .* bytes")
    assert job.agents() == []
    while part := os.read(reader, 1 << 16):
        parts.append(part)
    job.wait(0)
    lines = b"".join(parts).decode().splitlines(keepends=True)
    assert sorted(lines) == sorted(numbers)
    for rank in range(NODES):
        mine = [line for line in lines if line.startswith(f"[node{rank}]")]
        assert mine == numbers[rank * LINES : (rank + 1) * LINES]
        noted = re.findall(rf"^\[node{rank}\] {rank} wrote (\d+)$", job.err, re.MULTILINE)
        assert noted == [str(number) for number in range(0, LINES, 50)]
    assert "missing" not in job.err
    record_property("lines per second", len(lines) / (time.monotonic() - began))
    job.check_nothing_left()
