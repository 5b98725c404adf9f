"""The workers' store: its host, and its lifetime."""

from __future__ import annotations

import os
import re
import signal
import sys

import pytest

from helpers.fake_torch import write_fake_torch
from helpers.nodes import options
from helpers.ports import free_port
from helpers.processes import is_gone
from helpers.waiting import wait_for_files, wait_until

# The first half of the ranks exits after the first collective operation; the others meet again.
# There is no cleanup, because it would hide the end of a store in rank 0.
LEAVING = """\
import os, time
def meet():
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    total = torch.ones(1)
    dist.all_reduce(total)
    first = size // 2
    if rank < first:
        return "left"
    time.sleep(2)  # long after their exit, which is under test
    others = dist.new_group(range(first, size), use_local_synchronization=True)
    dist.all_reduce(total, group=others)
    return f"{total.item():g}"
"""
# One system call writes the line: `print` may use two, with another rank's output between them.
SCRIPT = f"{LEAVING}os.write(1, f'{{meet()}}\\n'.encode())\nos._exit(0)\n"
FUNCTION = f"""\
import sys
{LEAVING}
def leave():
    said = meet()
    if said == "left":
        os._exit(0)
    return said
def stay():
    return meet()
if __name__ == "__main__":
    from plaunch import LaunchConfig, elastic_launch
    config = LaunchConfig(1, 1, 2, start_method=sys.argv[1], max_restarts=0)
    print(sorted(elastic_launch(config, stay)().values()), flush=True)
"""
# With the fake torch, the store reports how its host loaded it.
ASKING = """\
import os, socket, sys
where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
with socket.create_connection(where, 30) as store:
    said = store.recv(16).decode()
line = f"{said} {os.environ['TORCHELASTIC_USE_AGENT_STORE']} {os.environ['LOCAL_RANK']}\\n"
os.write(1, line.encode())  # all of it at once
"""
STAYING = f"""\
{ASKING}
open(f"up.{{os.environ['TORCHELASTIC_RESTART_COUNT']}}.{{os.environ['RANK']}}", "w").close()
if len(sys.argv) > 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    import signal
    signal.pause()
"""


@pytest.fixture
def faked(plaunch, tmp_path):
    """Launches whose workers and store host use the fake torch."""
    plaunch.environ["PYTHONPATH"] = str(write_fake_torch(tmp_path / "fakes"))
    plaunch.environ["LOGLEVEL"] = "DEBUG"
    plaunch.environ.pop("USE_LIBUV", None)  # which the torch of this machine may need
    return plaunch


def host_of(stderr):
    return [int(pid) for pid in re.findall(r"store host is pid (\d+)", stderr)]


def wait_for_host(folder, launcher, *ranks):
    """Wait until the workers run, and so the store host does; return its process."""
    wait_for_files(*(folder / f"up.0.{rank}" for rank in ranks or (0,)))
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as title, open(f"/proc/{pid}/stat") as stat:
                parent = int(stat.read().rpartition(")")[2].split()[1])
                if parent == launcher.pid and b"worker_store/serving.py" in title.read():
                    return int(pid)
        except OSError:
            continue
    raise AssertionError(f"launcher {launcher.pid} has no store host")


# --- with torch -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.needs("libuv")
def test_workers_meet_again_after_the_end_of_rank_0(plaunch):
    pytest.importorskip("torch.distributed")
    done = plaunch.run("--nproc-per-node=3", plaunch.write("leaving.py", SCRIPT))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == ["6", "6", "left"]


@pytest.mark.slow
def test_they_would_not_if_rank_0_hosted_the_store(plaunch):
    pytest.importorskip("torch.distributed")
    script = plaunch.write("leaving.py", SCRIPT)
    # Two meet again: in torch 2.6, one rank alone makes a group without the store.
    done = plaunch.run("--nproc-per-node=3", "--worker-store=rank0", script)
    assert done.returncode == 1, done.stderr
    assert "DistNetworkError" in done.stderr


@pytest.mark.slow
@pytest.mark.needs("libuv")
@pytest.mark.parametrize(
    "start_method", ["spawn", "fork", pytest.param("forkserver", marks=pytest.mark.exhaustive)]
)
def test_functions_meet_again_too(plaunch, start_method):
    pytest.importorskip("torch.distributed")
    script = plaunch.write("functions.py", FUNCTION)
    with plaunch.start("--no-python", sys.executable, script, start_method) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert out.split("\n")[0] == "['2', 'left']"


@pytest.mark.slow
@pytest.mark.needs("libuv")
@pytest.mark.parametrize("backend", ["static", "c10d", "etcd-v2"])
def test_nodes_meet_again_after_the_end_of_node_0(agents, endpoint_of, backend, request):
    """Its launcher keeps running for them."""
    pytest.importorskip("torch.distributed")
    agents.script = str(agents.folder / "leaving.py")
    (agents.folder / "leaving.py").write_text(SCRIPT)
    words = ["--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    if backend != "static":
        words = options(endpoint_of(backend), 2, backend=backend, run_id=request.node.name)
    words.append("--local-addr=127.0.0.1")
    started = [agents.start(*words, f"--node-rank={rank}") for rank in range(2)]
    assert [agent.exit_code() for agent in started] == [0, 0], started[1].stderr
    assert [agent.stdout.split() for agent in started] == [["left"], ["2"]]


@pytest.mark.slow
@pytest.mark.needs("libuv")
def test_a_thousand_clients(plaunch):
    """More connections than the default limit of open files."""
    pytest.importorskip("torch.distributed")
    code = """\
import os, resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
from torch.distributed import TCPStore
where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
clients = [TCPStore(*where, is_master=False) for _ in range(1100)]
print(max(client.add("count", 1) for client in clients), flush=True)
os._exit(0)
"""
    done = plaunch.run(plaunch.write("many.py", code), RES_OPTIONS="timeout:1 attempts:1")
    assert (done.returncode, done.stdout) == (0, "1100\n"), done.stderr


# --- with a fake ----------------------------------------------------------------------------------


def test_a_job_without_torch_starts_no_host(faked):
    done = faked.run("--nproc-per-node=2", faked.write("empty.py", ""))
    assert done.returncode == 0, done.stderr
    assert "agent" not in done.stdout
    assert host_of(done.stderr) == []


@pytest.mark.parametrize("how", ["script", "module", "run-path", "no-python", "PYTHON_EXEC"])
def test_workers_of_each_kind_use_the_store(faked, how, tmp_path):
    script, environ, options = faked.write("asking.py", ASKING), {}, []
    if how == "module":
        options, script = ["-m"], "asking"
        environ["PYTHONPATH"] = os.pathsep.join([faked.environ["PYTHONPATH"], str(tmp_path)])
    elif how == "run-path":
        options = ["--run-path"]
    elif how == "no-python":
        options = ["--no-python", "sh", "-c", f'{sys.executable} "$0"']
    elif how == "PYTHON_EXEC":
        # The launcher does not use the fake; this interpreter does.
        python = tmp_path / "other-python"
        python.write_text(
            f'#!/bin/sh\nPYTHONPATH={faked.environ.pop("PYTHONPATH")} exec {sys.executable} "$@"\n'
        )
        python.chmod(0o755)
        environ["PYTHON_EXEC"] = str(python)
    done = faked.run("--nproc-per-node=2", *options, script, **environ)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["lean True 0", "lean True 1"]
    assert len(host_of(done.stderr)) == 1
    assert is_gone(host_of(done.stderr)[0])
    assert "left behind" not in done.stderr


def test_rank_0_can_have_the_port_to_itself(faked):
    code = """\
import os, socket
where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
with socket.create_server(where):
    print("bound", os.environ["TORCHELASTIC_USE_AGENT_STORE"])
"""
    done = faked.run("--worker-store=rank0", faked.write("binding.py", code))
    assert (done.returncode, done.stdout) == (0, "bound False\n"), done.stderr
    done = faked.run(faked.write("binding.py", code))
    assert done.returncode == 1
    assert "Address already in use" in done.stderr


def test_a_host_that_is_killed_ends_the_round_and_the_next_one_has_another(faked, tmp_path):
    script = faked.write("staying.py", STAYING)
    with faked.start("--nproc-per-node=2", "--max-restarts=1", script, "wait") as process:
        os.kill(wait_for_host(tmp_path, process, 0, 1), signal.SIGKILL)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert re.search(
        r"the workers' store at 127\.0\.0\.1:\d+ was lost: its process has ended \(pid \d+, killed "
        r"by SIGKILL \(signal 9\)\); restart 1 of 1",
        err,
    ), err
    assert len(set(host_of(err))) == 2
    assert out.count("lean True") == 4


def test_a_host_that_is_killed_fails_the_job_without_restarts(faked, tmp_path):
    script = faked.write("staying.py", STAYING)
    with faked.start(script, "wait") as process:
        os.kill(wait_for_host(tmp_path, process), signal.SIGKILL)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 113, err
    assert "plaunch: the launcher on" in err
    assert "was lost: its process has ended" in err


def test_the_host_ends_with_a_launcher_that_is_killed(faked, tmp_path):
    script = faked.write("staying.py", STAYING)
    with faked.start(script, "wait") as process:
        host = wait_for_host(tmp_path, process)
        process.kill()
        wait_until(lambda: is_gone(host), "the end of the store host")


def test_a_stop_ends_the_host_after_the_workers(faked, tmp_path):
    """Workers still have the store while they save."""
    code = f"""\
{ASKING}
import signal
def save(signum, frame):
    {ASKING.replace(chr(10), chr(10) + "    ")}
    os._exit(0)
signal.signal(signal.SIGTERM, save)
open("up.0.0", "w").close()
while True:
    signal.pause()
"""
    with faked.start(faked.write("saving.py", code)) as process:
        host = wait_for_host(tmp_path, process)
        process.terminate()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    assert out.count("lean True") == 2, err
    assert is_gone(host)
