"""`plaunch_torchrun.install` and `python -m plaunch_torchrun`, with programs that call torchrun.

The real ones are in tests/e2e/test_callers.py.
"""

from __future__ import annotations

import json
import os

import pytest

from helpers.programs import run_python

pytest.importorskip("torch")

BOUND = 120.0  # seconds, of which torch takes some

WORKER = """\
import os
who = "plaunch" if "PLAUNCH_ROUND" in os.environ else "torchrun"
os.write(1, f"{os.environ['RANK']} of {os.environ['WORLD_SIZE']}, {who}\\n".encode())
"""
# As accelerate calls it: the parser, a namespace with more in it, and run.
ACCELERATE = """\
import sys
import torch.distributed.run as distrib_run
parser = distrib_run.get_args_parser()
args, _ = parser.parse_known_args(["--training_script", sys.argv[1]])
args.training_script, args.training_script_args = sys.argv[1], []
args.nproc_per_node = "2"
distrib_run.run(args)
"""
# As Lightning Fabric calls it.
FABRIC = """\
import sys
import torch.distributed.run as torchrun
torchrun.main(["--nproc_per_node=2", "--nnodes=1", "--node_rank=0", sys.argv[1]])
"""
# As accelerate's notebook_launcher calls it.
NOTEBOOK = """\
import sys
from importlib.util import find_spec
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
options = {}
if find_spec("torch.numa"):  # since torch 2.8
    from torch.numa.binding import AffinityMode, NumaOptions
    options["numa_options"] = NumaOptions(AffinityMode.NODE)
config = LaunchConfig(
    min_nodes=1, max_nodes=1, nproc_per_node=2, run_id="none", rdzv_endpoint="127.0.0.1:0",
    rdzv_backend="static", rdzv_configs={"rank": 0}, max_restarts=0, monitor_interval=0.1,
    start_method="spawn", log_line_prefix_template=None, **options
)
config.numa_options = None
elastic_launch(config=config, entrypoint=sys.executable)(sys.argv[1])
"""
PLAIN = """\
import sys
import torch.distributed.run
sys.argv[1:] = ["--nproc-per-node=2", sys.argv[1]]
torch.distributed.run.main()
"""
LAUNCH = """\
import sys
from torch.distributed import launch
launch.main(["--nproc_per_node=2", "--use_env", sys.argv[1]])
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "worker.py").write_text(WORKER)
    return tmp_path


def run(folder, *argv, **environ):
    return run_python(
        *argv, cwd=folder, env={**os.environ, "LOGLEVEL": "WARNING", **environ}, timeout=BOUND
    )


CALLERS = {
    "accelerate": ACCELERATE,
    "fabric": FABRIC,
    "notebook": NOTEBOOK,
    "plain": PLAIN,
    "launch": LAUNCH,
}
# Each is a fork of one process, as imports of torch take most of the time. They import its launcher
# themselves.
ALL = """\
import os, runpy, sys
import torch.distributed
assert not {"torch.distributed.run", "torch.distributed.launcher"} & set(sys.modules)
worker, *names = sys.argv[1:]
for name in names:
    print(name, flush=True)
    pid = os.fork()
    if pid == 0:
        sys.argv = [f"{name}.py", worker]
        runpy.run_path(sys.argv[0], run_name="__main__")
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, name
"""


@pytest.mark.slow
def test_programs_that_call_torchrun_get_plaunch(folder):
    for name, caller in CALLERS.items():
        (folder / f"{name}.py").write_text(caller)
    (folder / "all.py").write_text(ALL)
    done = run(folder, "-m", "plaunch_torchrun", "all.py", "worker.py", *CALLERS)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3 * len(CALLERS), done.stderr
    for name in CALLERS:
        said, lines = lines[:3], lines[3:]
        assert [said[0], *sorted(said[1:])] == [name, "0 of 2, plaunch", "1 of 2, plaunch"]


def test_in_code_and_after_torchs_module_was_imported(folder):
    first = "import torch.distributed.run, torch.distributed.launcher.api\n"
    second = "import plaunch_torchrun\nplaunch_torchrun.install()\nplaunch_torchrun.install()\n"
    (folder / "caller.py").write_text(first + second + PLAIN)
    done = run(folder, "caller.py", "worker.py")
    assert sorted(done.stdout.splitlines()) == ["0 of 2, plaunch", "1 of 2, plaunch"], done.stderr


def test_torchs_module_is_not_executed_again(folder):
    code = """
import torch.distributed.run as before
before.added = object()
import plaunch_torchrun; plaunch_torchrun.install()
import torch.distributed.run as after
print(after is not before, after.added is before.added)
"""
    assert run(folder, "-c", code).stdout == "True True\n"


def test_torch_is_imported_only_when_needed(folder):
    code = (
        "import plaunch_torchrun, sys; plaunch_torchrun.install()\n"
        "print(any(name.split('.')[0] == 'torch' for name in sys.modules))"
    )
    assert run(folder, "-c", code).stdout == "False\n"


def test_other_names_of_torchs_modules_are_torchs(folder):
    code = """
import plaunch_torchrun, json; plaunch_torchrun.install()
import torch.distributed.run as run, torch.distributed.launcher as launcher
import importlib.util
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
facts = {
    "same": run.DefaultLogsSpecs is DefaultLogsSpecs,
    "logger": run.logger.name,
    "of_plaunch": [run.main.__module__, launcher.api.elastic_launch.__module__],
    "found": importlib.util.find_spec("torch.distributed.run").origin,
    "listed": "config_from_args" in dir(run),
    "none": [hasattr(run, "no_such_name"), hasattr(run, "__no_such__")],
}
print(json.dumps(facts))
"""
    done = run(folder, "-c", code)
    assert json.loads(done.stdout) == {
        "same": True,
        "logger": "torch.distributed.run",
        "of_plaunch": ["plaunch_torchrun.run", "plaunch_torchrun.launcher"],
        "found": "plaunch_torchrun.run",
        "listed": True,
        "none": [False, False],
    }


PATCHED_BEFORE = """
import torch.distributed.run as run
run.elastic_launch = lambda config, entrypoint: lambda *args: print("mine", len(args))
run.get_rdzv_endpoint = lambda args: "nowhere"
import plaunch_torchrun; plaunch_torchrun.install()
import torch.distributed.run as again
import plaunch_torchrun.run
again.main(["worker.py"])
del again.elastic_launch
print(plaunch_torchrun.run.elastic_launch.__name__)
again.main(["worker.py"])
"""


def test_names_that_were_assigned_before(folder):
    done = run(folder, "-c", PATCHED_BEFORE)
    said = sorted(done.stdout.splitlines())  # the worker does not wait for the caller's buffer
    assert said == ["0 of 1, plaunch", "TorchTypedLaunch", "mine 2"], done.stderr
    assert "has replaced torch.distributed.run.get_rdzv_endpoint, which plaunch" in done.stderr


IMPORTED_LATER = """
import plaunch_torchrun; plaunch_torchrun.install()
import torch.distributed.launcher.api as api
api.elastic_launch = lambda config, entrypoint: lambda *args: print("mine", len(args))
import torch.distributed.run as run
run.main(["worker.py"])
"""


def test_a_name_that_another_module_imports(folder):
    done = run(folder, "-c", IMPORTED_LATER)
    assert done.stdout == "mine 2\n", done.stderr


OWN_AGENT = """
import plaunch_torchrun; plaunch_torchrun.install()
import torch.distributed.launcher.api as api, torch.distributed.run as run
from plaunch_torchrun.elastic.agent import LocalElasticAgent
class Mine(LocalElasticAgent):
    def _start_workers(self, group):
        print("mine", flush=True)
        return super()._start_workers(group)
api.LocalElasticAgent = Mine
run.main(["worker.py"])
"""


def test_an_agent_derived_from_plaunchs(folder):
    done = run(folder, "-c", OWN_AGENT)
    assert done.stdout.splitlines() == ["mine", "0 of 1, plaunch"], done.stderr
    assert "has replaced" not in done.stderr


def test_the_exit_code_and_the_report_are_plaunchs(folder):
    (folder / "worker.py").write_text("raise SystemExit(17)")
    (folder / "caller.py").write_text(FABRIC)
    done = run(folder, "-m", "plaunch_torchrun", "caller.py", "worker.py")
    assert done.returncode == 17
    assert "exit code 17" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_exception_of_the_program_propagates(folder):
    (folder / "caller.py").write_text("raise ValueError('mine')")
    done = run(folder, "-m", "plaunch_torchrun", "caller.py")
    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: mine\n")
    assert "internal error" not in done.stderr


def test_child_processes_find_plaunch_as_torchrun(folder):
    (folder / "caller.py").write_text(
        "import shutil, subprocess, sys\n"
        "print(shutil.which('torchrun'))\n"
        "sys.stdout.flush()\n"
        "sys.exit(subprocess.call(['bash', '-c', 'torchrun --nproc_per_node 1 worker.py']))\n"
    )
    done = run(folder, "-m", "plaunch_torchrun", "caller.py")
    path, *said = done.stdout.splitlines()
    assert said == ["0 of 1, plaunch"], done.stderr
    assert not os.path.exists(os.path.dirname(path)), "and nothing is left"


def test_a_module_is_run_as_python_runs_it(folder):
    (folder / "caller.py").write_text("import sys; print(__name__, sys.argv[1:])")
    done = run(folder, "-m", "plaunch_torchrun", "-m", "caller", "-m", "x")
    assert done.stdout == "__main__ ['-m', 'x']\n"


def test_a_program_of_a_package(folder):
    done = run(folder, "-m", "plaunch_torchrun", "plaunch", "--version")
    assert done.returncode == 0
    assert done.stdout.startswith("plaunch ")


@pytest.mark.parametrize("words", [[], ["-m"], ["--help"], ["no-such-program"], ["ls"]])
def test_programs_that_do_not_exist(folder, words):
    done = run(folder, "-m", "plaunch_torchrun", *words)
    assert done.returncode == 2
    assert done.stderr.startswith("plaunch: error: ")
    assert "python -m plaunch_torchrun PROGRAM" in done.stderr
