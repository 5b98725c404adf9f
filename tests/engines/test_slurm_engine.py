"""The engine `slurm` with programs in the place of Slurm's."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path

import pytest
from plaunch.engines import EngineRequest
from plaunch.errors import ExitCode, UsageError
from plaunch_engines.slurm import create_slurm_engine, slurm_options

from helpers.waiting import wait_until


def request(where="", **fields):
    return EngineRequest(**{
        "where": where, "min_nodes": 2, "max_nodes": 2, "folder": "/work",
        "options": {"slurm_options": []}, "job": "plaunch-1", **fields,
    })  # fmt: skip


# A job 7 of the nodes that the file `nodes` names. Steps run on this machine.
FAKES = {
    "srun": """
        for word; do
            case $word in --nodelist=*) export NODE=${word#*=} ;; --*) ;; *) break ;; esac
            shift
        done
        exec "$@"
    """,
    "salloc": """
        while [ "$1" != sh ]; do shift; done
        echo "salloc: Granted job allocation 7" >&2
        SLURM_JOB_ID=7 "$@"
    """,
    "squeue": "case $* in *%N*) echo the-nodes ;; esac",
    "scontrol": "case $* in *nosuch*) exit 1 ;; *) cat $(dirname $0)/nodes ;; esac",
    "scancel": "echo $* > $(dirname $0)/cancelled",
    "sbatch": "exit 1",
}


@pytest.fixture
def with_programs(tmp_path, monkeypatch):
    """Programs in the place of Slurm's, which know one job."""
    (tmp_path / "nodes").write_text("node1\nnode2\nnode3\n")
    for name, text in FAKES.items():
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{text}")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)


def test_options_are_words_of_a_shell():
    texts = ['--partition=gpu --comment="two words"', "--time 5"]
    assert slurm_options(texts) == ["--partition=gpu", "--comment=two words", "--time", "5"]


@pytest.mark.parametrize("text", ["--nodes=4", "-N4", "--ntasks 8", "-n 8", "--no-shell"])
def test_options_that_the_engine_sets_are_refused(text):
    with pytest.raises(UsageError, match="is set by --on=slurm; leave it out"):
        slurm_options([text])


def test_options_that_are_not_words_are_refused():
    with pytest.raises(UsageError, match="--slurm-options: No closing quotation"):
        slurm_options(["--comment='x"])


def test_another_kind_of_launch_is_refused():
    with pytest.raises(UsageError, match="write slurm or slurm:batch"):
        create_slurm_engine(request("node1"))


@pytest.mark.parametrize(("where", "program"), [("", "srun"), ("batch", "sbatch")])
def test_slurm_must_be_installed(where, program, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UsageError, match=f"needs {program}, which is not in PATH"):
        create_slurm_engine(request(where))


@pytest.mark.usefixtures("with_programs")
def test_options_for_an_allocation_that_exists_are_refused(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with pytest.raises(UsageError, match="are for a new allocation, and this is job 7"):
        create_slurm_engine(request(options={"slurm_options": ["--time=1"]}))


@pytest.mark.usefixtures("with_programs")
def test_a_batch_script_needs_a_number_of_nodes():
    with pytest.raises(UsageError, match="needs a number of nodes"):
        create_slurm_engine(request("batch", min_nodes=None, max_nodes=None))


@pytest.mark.usefixtures("with_programs")
@pytest.mark.parametrize(
    ("fields", "nodes", "has_spares"),
    [({}, 2, False), ({"min_nodes": 1}, 2, True), ({"spares": 1}, 3, True)],
)
def test_a_batch_script(fields, nodes, has_spares):
    options = {"slurm_options": ["--partition gpu --comment='two words'"]}
    engine = create_slurm_engine(request("batch", options=options, **fields))
    script = engine.script(["--nnodes=2", "--", "train.py", "a b"])
    assert f'\nexport PATH={os.path.dirname(sys.executable)}:"$PATH"\nsrun ' in script
    assert f"#SBATCH --nodes={nodes}\n#SBATCH --ntasks-per-node=1\n" in script
    assert "#SBATCH --partition gpu\n#SBATCH '--comment=two words'\n" in script
    assert "plaunch --scheduler=slurm \\\n    --nnodes=2 -- train.py 'a b'\n" in script
    assert ("#SBATCH --no-kill\n" in script, "--kill-on-bad-exit" in script) == (
        (True, False) if has_spares else (False, True)
    )


@pytest.mark.usefixtures("with_programs")
def test_a_batch_script_with_a_set_up_line_and_excluded_hosts():
    options = {"slurm_options": ["--partition=gpu"], "node_setup": "module load 'cuda 12'"}
    engine = create_slurm_engine(request("batch", options=options, exclude=["n1", "n2"]))
    script = engine.script(["train.py"])
    assert "#SBATCH --exclude=n1,n2\n#SBATCH --partition=gpu\n" in script
    words = shlex.split(script.partition("\nsrun ")[2])
    place = words.index("bash")
    assert words[place:][:5] == [
        *("bash", "-l", "-c"),
        "{ module load 'cuda 12'\n} </dev/null && "
        f'export PATH={os.path.dirname(sys.executable)}:"$PATH" && exec "$@"',
        "--node-setup",
    ]
    words = [word for word in words[place + 5 :] if word.strip()]
    assert words[1:] == ["-m", "plaunch", "--scheduler=slurm", "train.py"]


def run_agents(handles, code):
    """Let agents end with a code; return what they have written."""
    for handle in handles:
        handle.write(f"{code}\n".encode())
    read = dict.fromkeys(handles, b"")

    def ended():
        for handle in handles:
            try:
                read[handle] += os.read(handle.stdout, 1000)
            except BlockingIOError:
                pass
        return all(handle.poll() is not None for handle in handles)

    wait_until(ended, lambda: f"the agents end: {read}")
    return [read[handle].decode() for handle in handles]


AGENT = ["sh", "-c", 'read -r line; echo "$NODE $line"; exit "$line"']


class Agents:
    """Starts agents of an engine, and ends them."""

    def __init__(self):
        self.engine = None
        self._handles = []

    def create_engine(self, **fields):
        self.engine = create_slurm_engine(request(**fields))

    def start(self, *indices):
        started = self.engine.start(AGENT, indices)
        self._handles += started
        return started

    def start_in_new_allocation(self, count):
        started = self.start(*range(count))
        wait_until(lambda: started[0].poll() is None and started[0].node == "node1", "granted")
        return started

    def close(self):
        self.engine.close()
        wait_until(lambda: all(h.poll() is not None for h in self._handles), "they end")
        for handle in self._handles:
            handle.close()


@pytest.fixture
def agents(with_programs):
    agents = Agents()
    yield agents
    agents.close()


def test_agents_of_an_allocation_are_replaced_on_other_nodes(agents, monkeypatch, tmp_path):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    agents.create_engine()
    assert agents.engine.nodes == 3
    first = agents.start(0, 1)
    assert run_agents(first, 7) == ["node1 7\n", "node2 7\n"]
    assert [handle.poll() for handle in first] == [7, 7]
    excluded = int(ExitCode.NODE_EXCLUDED)
    assert run_agents(agents.start(2), excluded) == [f"node3 {excluded}\n"]
    (again,) = agents.start(3)
    assert again.node == "node1"
    (tmp_path / "nodes").write_text("node1\nnode3\n")  # Slurm has lost node2
    with pytest.raises(UsageError, match="job 7 has no other node"):
        agents.start(4)
    (tmp_path / "nodes").write_text("")
    with pytest.raises(UsageError, match="job 7 has ended"):
        agents.start(4)


def test_excluded_nodes_of_an_allocation_are_not_used(agents, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    agents.create_engine(exclude=["node2", "elsewhere"])
    assert agents.engine.nodes == 2
    assert run_agents(agents.start(0, 1), 7) == ["node1 7\n", "node3 7\n"]
    with pytest.raises(UsageError, match="--exclude: Slurm has no node 'nosuch'"):
        create_slurm_engine(request(exclude=["node2", "nosuch"]))
    with pytest.raises(UsageError, match="--exclude leaves no node of job 7"):
        create_slurm_engine(request(exclude=["node1", "node2", "node3"]))


def test_a_new_allocation_excludes_nodes(agents, tmp_path):
    (tmp_path / "salloc").write_text('#!/bin/sh\necho "$*" >&2; exit 1\n')
    agents.create_engine(exclude=["n1", "n2"])
    (agent,) = agents.start(0)
    wait_until(lambda: agent.poll() == 1, "it ends")
    assert b" --exclude=n1,n2 " in os.read(agent.stderr, 1000)


def test_an_allocation_is_made_and_released(agents, tmp_path):
    agents.create_engine(max_nodes=3)
    assert agents.engine.nodes is None
    started = agents.start_in_new_allocation(3)
    assert run_agents(started, 0) == ["node1 0\n", "node2 0\n", "node3 0\n"]
    agents.engine.close()
    assert not (tmp_path / "cancelled").exists()


def test_an_allocation_is_released_without_the_process_that_holds_it(agents, tmp_path):
    agents.create_engine(max_nodes=3)
    agents.start_in_new_allocation(3)
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    (holder,) = (
        int(pid)
        for pid in children
        if "plaunch_engines.slurm_allocation" in Path(f"/proc/{pid}/cmdline").read_text()
    )
    os.kill(holder, signal.SIGKILL)
    cancelled = tmp_path / "cancelled"
    wait_until(lambda: cancelled.exists() and cancelled.read_text() == "7\n", "scancel")


def test_agents_end_without_an_allocation(agents, tmp_path):
    (tmp_path / "salloc").write_text("#!/bin/sh\necho 'salloc: error: no' >&2; exit 1\n")
    agents.create_engine()
    started = agents.start(0, 1)
    wait_until(lambda: [agent.poll() for agent in started] == [1, 1], "they end")
    assert os.read(started[0].stderr, 1000) == b"salloc: error: no\n"
