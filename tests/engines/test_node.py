"""The program on each node: an agent, and what it reports."""

import contextlib
import json
import os
import sys
import threading
from functools import partial

import pytest
from plaunch_engines.agent_process import AgentProcess
from plaunch_engines.records import InvalidRecord, Records
from plaunch_engines.reporter import Reporter

from helpers.waiting import wait_until

NONCE = "5ec7e7" * 5

SEEKING = """\
import json, os
def read(path):
    with open(path, "rb") as file:
        return file.read().decode(errors="replace")
pid, seen = os.getpid(), {}
while pid > 1:
    for name in ("environ", "cmdline"):
        try:
            seen[f"{name} of {pid}"] = read(f"/proc/{pid}/{name}")
        except OSError:
            pass
    pid = int(read(f"/proc/{pid}/stat").rpartition(")")[2].split()[1])
for fd in os.listdir("/proc/self/fd"):
    try:
        seen[f"descriptor {fd}"] = os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        pass
with open("seen.json", "w") as file:
    json.dump(seen, file)
os.write(1, b"trained")
os.write(2, b"careful")
"""


@pytest.fixture
def run(tmp_path):
    """Run an agent with a script, and return what its streams have."""
    handles = []

    def run(script, *options):
        (tmp_path / "train.py").write_text(script)
        command = [sys.executable, "-m", "plaunch_engines.node", str(tmp_path), "train.py"]
        handle = AgentProcess("node1", command, address="127.0.0.1")
        handles.append(handle)
        arguments = ["--nnodes=1", "--nproc-per-node=1", *options, "--", "train.py"]
        streams = {handle.stdout: Records(), handle.stderr: Records()}
        found = {fd: [] for fd in streams}
        is_open = set(streams)

        def read():
            for fd in [*is_open]:
                try:
                    data = os.read(fd, 1 << 16)
                except BlockingIOError:
                    continue
                found[fd] += streams[fd].feed(data)
                if not data:
                    is_open.discard(fd)
            return not is_open

        wait_until(lambda: read() or found[handle.stderr], lambda: found)
        for splitter in streams.values():
            splitter.expect(NONCE)
        settings = {"arguments": arguments, "env": {}, "nonce": NONCE}
        handle.write(json.dumps(settings).encode() + b"\n")
        wait_until(read, lambda: found)
        wait_until(lambda: handle.poll() is not None, "the exit")
        return found[handle.stdout], found[handle.stderr]

    yield run
    for handle in handles:
        handle.stop()
        handle.close()


def test_each_stream_ends_with_a_record_after_all_output(run):
    out, err = run("import os; os.write(1, b'trained'); os.write(2, b'careful')")
    assert out == [b"trained", {"kind": "end_of_output"}]
    kinds = [piece["kind"] for piece in err if isinstance(piece, dict)]
    assert kinds == ["hello", "running", "workers_ended", "end"]
    assert (err[-1]["kind"], err[-1]["code"]) == ("end", 0)
    assert b"careful" in b"".join(piece for piece in err if isinstance(piece, bytes))


def test_a_restart_of_the_whole_job_is_a_record_and_another_one_is_text(run):
    """The command shows the record of one node; what took so long differs between nodes."""
    code = "import os; os._exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')"
    for backend, has_record in (("c10d", True), ("static", False)):
        options = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"] if has_record else []
        _, err = run(code, *options, "--max-restarts=1")
        records = [piece for piece in err if isinstance(piece, dict)]
        texts = b"".join(piece for piece in err if isinstance(piece, bytes))
        found = [(one["round"], one["text"][:13]) for one in records if one["kind"] == "restarted"]
        assert found == ([(1, "restarted in ")] if has_record else []), backend
        assert (b"plaunch: restarted in " in texts) is not has_record


def test_the_end_of_the_output_is_marked_although_a_worker_has_made_it_non_blocking():
    """It has the same pipe, which may be full at the end."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    finish = partial(Reporter(NONCE, writer).finish, 0, has_succeeded=True, verdict="")
    thread = threading.Thread(target=finish)
    thread.start()
    wait_until(lambda: os.get_blocking(writer), "the last write")
    splitter = Records()
    splitter.expect(NONCE)
    found = []
    while {"kind": "end_of_output"} not in found:
        found += splitter.feed(os.read(reader, 1 << 16))
    thread.join()
    os.close(reader)
    os.close(writer)


def test_workers_do_not_get_the_nonce(run, tmp_path):
    """Neither in their environment or that of a parent, nor in arguments or a descriptor."""
    _, err = run(SEEKING)
    assert (err[-1]["kind"], err[-1]["code"]) == ("end", 0)
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert [name for name, text in seen.items() if NONCE in text] == []
    assert sum(name.startswith("environ") for name in seen) >= 2
    fds = {int(name.split()[1]): what for name, what in seen.items() if "descriptor" in name}
    assert fds[0] == "/dev/null"
    assert [what for fd, what in fds.items() if fd > 2 and "/proc/" not in what] == []


def test_a_failure_is_reported_with_its_whole_text(run):
    out, err = run("import sys; sys.exit('x' * 5000)")
    assert out[-1] == {"kind": "end_of_output"}
    parts = [one for one in err if isinstance(one, dict) and one["kind"].startswith("failure")]
    assert parts[-1]["code"] == 1
    assert parts[-1]["is_of_workers"]
    assert "exit code 1" in "".join(one["text"] for one in parts)
    assert not any(isinstance(one, InvalidRecord) for one in err)
