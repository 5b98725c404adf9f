"""`--dry-run`: the plan, and that nothing is started."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys

import pytest
from plaunch.cli import main, run
from plaunch.errors import PlaunchError, UsageError
from plaunch.plugin import ENGINES, KINDS

from helpers.hooks import plugin_of
from helpers.programs import run_python

# Fails at the first socket, process or folder.
SPY = """
import sys
def refuse(event, args):
    if event in ("socket.bind", "socket.connect", "os.posix_spawn", "os.fork", "os.mkdir") or (
        event == "subprocess.Popen"
    ):
        raise SystemExit(f"a dry run did {event} {args}")
sys.addaudithook(refuse)
from plaunch.cli import main
sys.exit(main())
"""


@pytest.fixture(autouse=True)
def _calm(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.fixture
def plan_of(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()

    def plan_of(*argv, form="json", plugins=()):
        assert run([f"--dry-run={form}", *argv], plugins=plugins) == {}
        out = capsys.readouterr().out
        return json.loads(out) if form == "json" else out

    return plan_of


def test_one_node(plan_of, tmp_path):
    plan = plan_of("--nproc-per-node=2", "--tee=0:3", "--log-dir=logs", "train.py", "${local_rank}")
    assert plan["version"] == 1
    assert plan["job"]["max_nodes"] == 1
    first, second = plan["workers"]
    assert first["command"] == [sys.executable, "-u", "train.py", "0"]
    assert second["command"][-1] == "1"
    assert (second["rank"], second["environment"]["RANK"]) == (1, "1")
    assert second["environment"]["MASTER_ADDR"] == "127.0.0.1"
    assert second["environment"]["MASTER_PORT"] == "<a free port>"
    assert second["environment"]["OMP_NUM_THREADS"] == "1"
    run_id = plan["job"]["run_id"]
    assert first["logs"]["stdout"] == f"logs/{run_id}_<random>/attempt_0/0/stdout.log"
    assert set(second["logs"]) == {"error_file"}
    assert os.listdir(tmp_path) == ["train.py"]


def test_sources(plan_of, monkeypatch):
    monkeypatch.setenv("PET_MAX_RESTARTS", "3")
    monkeypatch.setenv("PET_ROLE", "from the environment")
    plan = plan_of("--role=given", "train.py")
    found = {name: (item["value"], item["source"]) for name, item in plan["settings"].items()}
    assert found["max_restarts"] == (3, "PET_MAX_RESTARTS")
    assert found["role"] == ("given", "command line")
    assert found["nnodes"] == ("1:1", "default")
    assert found["shutdown_timeout"] == (30, "default")
    assert found["nproc_per_node"] == (1, "default")


def test_several_nodes_with_given_ranks(plan_of):
    plan = plan_of(
        "--nnodes=3", "--node-rank=1", "--master-addr=node0", "--nproc-per-node=4", "train.py"
    )
    assert [worker["rank"] for worker in plan["workers"]] == [4, 5, 6, 7]
    assert {worker["environment"]["WORLD_SIZE"] for worker in plan["workers"]} == {"12"}
    assert {worker["environment"]["MASTER_PORT"] for worker in plan["workers"]} == {"29500"}


def test_values_decided_by_the_rendezvous_are_open(plan_of):
    pytest.importorskip("torch")
    plan = plan_of(
        "--nnodes=1:4", "--rdzv-backend=c10d", "--rdzv-endpoint=node0", "--rdzv-id=job", "train.py"
    )
    (worker,) = plan["workers"]
    assert worker["rank"] is None
    env = worker["environment"]
    for name in ("RANK", "WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"):
        assert env[name] == "<decided when the nodes meet>"
    assert (env["LOCAL_RANK"], env["TORCHELASTIC_RUN_ID"]) == ("0", "job")


def test_variables_of_plugins(plan_of):
    env = plugin_of(plaunch_worker_env=lambda worker: {"COLOUR": f"red {worker.global_rank}"})
    plan = plan_of("train.py", plugins=[env])
    assert plan["workers"][0]["environment"]["COLOUR"] == "red 0"
    kinds = [(plugin["kind"], plugin["name"]) for plugin in plan["plugins"]]
    assert ("rendezvous", "static") in kinds
    assert ("logs_specs", "default") in kinds
    assert ("signal_policies", "torchrun") in kinds


def test_devices_and_processors(plan_of, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    options = ("--devices=1,3", "--virtual-local-rank", "--numa-binding=node")
    plan = plan_of(*options, "train.py")
    assert plan["settings"]["nproc_per_node"] == {"value": 2, "source": "--devices"}
    first, second = plan["workers"]
    assert first["environment"]["CUDA_VISIBLE_DEVICES"] == "5"
    assert second["environment"]["CUDA_VISIBLE_DEVICES"] == "7"
    assert {w["environment"]["LOCAL_RANK"] for w in plan["workers"]} == {"0"}
    assert first["cpus"]
    assert f"  cpus: {first['cpus']}" in plan_of(*options, "train.py", form="text").splitlines()


def test_the_text_form(plan_of):
    text = plan_of("--nproc-per-node=2", "--max-restarts=1", "train.py", "a b", form="text")
    lines = text.splitlines()
    assert any(line.split() == ["--max-restarts", "1", "command", "line"] for line in lines)
    assert f"  {sys.executable} -u train.py 'a b'" in lines
    assert "  RANK=1" in lines
    # Values that all workers have in common are printed once.
    assert lines.count("  WORLD_SIZE=2") == 1


def test_the_default_form_is_text(capsys, tmp_path):
    script = tmp_path / "json"
    script.touch()
    run(["--dry-run", str(script)])
    assert capsys.readouterr().out.startswith("plaunch ")


@pytest.mark.parametrize("argv", [[], ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=x"]])
def test_no_process_is_started_and_no_socket_opened(argv, tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "spy.py").write_text(SPY)
    (tmp_path / "train.py").touch()
    words = ["--dry-run", "--nproc-per-node=2", *argv, "train.py"]
    done = run_python("spy.py", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "worker of local rank 1" in done.stdout


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--rdzv-backend=nope", "x"], "nope"),
        (["nowhere.py"], "does not exist"),
        ([], "no script"),
        (["--nnodes=2", "x"], "--master-addr with that of node 0"),
        (["--health-check=nope", "x"], "health check 'nope' is unknown"),
        (["--on-hang=stop", "x"], "--on-hang=stop needs --hang-timeout"),
    ],
)
def test_mistakes_are_found_as_in_a_launch(argv, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").touch()
    with pytest.raises(PlaunchError, match=message):
        run(["--dry-run", *argv])


@pytest.mark.parametrize(
    "kind", [one for one in KINDS if one.flag and one is not ENGINES], ids=lambda one: one.name
)
@pytest.mark.parametrize("command", ["--dry-run", "launch"])
def test_an_unknown_name_is_refused_as_by_a_launch(kind, command, tmp_path):
    """An engine runs instead of a launch, and of a dry run."""
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('it was started')")
    words = [] if command == "launch" else [command]
    with pytest.raises(UsageError, match=re.escape(kind.flag)) as caught:
        run([*words, f"{kind.flag}=nope", str(script)])
    assert "nope" in str(caught.value)


@pytest.mark.parametrize("names", ["jsonl,nope", "null,nope", "plaunch:nope"])
def test_an_unknown_event_handler_among_others_is_refused(names, tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    with pytest.raises(UsageError, match=r"event handler '(plaunch:)?nope' is unknown"):
        run(["--dry-run", f"--event-log-handler={names}", str(script)])


C10D = "--rdzv-backend=c10d"
ETCD = "--rdzv-backend=etcd-v2"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([C10D, "--rdzv-conf=join_timout=3"], "did you mean 'join_timeout'"),
        ([C10D, "--rdzv-conf=read_timeout=soon"], "read_timeout"),
        ([C10D, "--rdzv-conf=store=nope"], "'nope'; choose from job, torch"),
        ([C10D, "--rdzv-conf=store_type=file", "--rdzv-endpoint=/proc/x/y"], "cannot be a file"),
        ([C10D, "--rdzv-conf=token_file=/nowhere"], "token file '/nowhere'"),
        ([C10D, "--rdzv-conf=is_host=false", "--rdzv-endpoint=node0:0"], "has no port"),
        ([C10D, "--rdzv-endpoint=tcp://localhost:0"], "begins with a protocol"),
        ([C10D, "--rdzv-endpoint=~:123"], "neither a name nor an address"),
        (["--rdzv-endpoint=node0"], "has no port that all nodes know"),
        (["--master-port=123456"], "--master-port is 123456"),
        (["--nnodes=2", "--master-addr=a b"], "neither a name nor an address"),
        ([ETCD, "--rdzv-endpoint=a:b:c"], "is not a number"),
        ([ETCD, "--rdzv-endpoint=tcp://a"], "'tcp'"),
        ([ETCD, "--rdzv-conf=job_ttl=1"], "job_ttl"),
    ],
)
@pytest.mark.parametrize("command", ["--dry-run", "launch"])
def test_what_a_backend_refuses(argv, message, command, tmp_path):
    if ETCD in argv:
        pytest.importorskip("grpc")
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('it was started')")
    words = [command, *argv] if command != "launch" else argv
    with pytest.raises(UsageError, match=re.escape(message)):
        run([*words, str(script)])


def make_files(folder):
    (folder / "train.py").write_text("")
    (folder / "exits.py").write_text("raise SystemExit(7)")
    (folder / "file").write_text("")
    (folder / "syntax.py").write_text("def x(:\n")
    (folder / "nul.py").write_bytes(b"x = 1\0\n")
    (folder / "broken.zip").write_text("not a zip file")
    for name in ("package", "runs/inner"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").touch()
    (folder / "runs/inner/__main__.py").touch()
    for name, text in (("no_interpreter", "#!/nowhere/python\n"), ("no_format", "\1\2\n")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "no_permission").write_text("#!/bin/sh\n")


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (0, "train.py"),
        (2, "nowhere.py"),
        (2, "package"),
        (1, "syntax.py"),
        (1, "nul.py"),
        (1, "broken.zip"),
        (1, "--run-path syntax.py"),
        (0, "-m train"),
        (0, "-m runs.inner"),
        (1, "-m no_such_module"),
        (1, "-m package"),
        (1, "-m package.nothing"),
        (1, "-m no_such_package.inner"),
        (1, "-m file"),
        (1, "-m ..train"),
        (1, "-m builtins"),
        (2, "-m ''"),
        (0, "--no-python true"),
        (2, "--no-python nowhere"),
        (2, "--no-python ./no_interpreter"),
        (2, "--no-python ./no_format"),
        (2, "--no-python ./no_permission"),
        (2, "PYTHON_EXEC=./no_interpreter train.py"),
        (2, "PYTHON_EXEC=/nowhere/python train.py"),
        (0, "--log-dir=logs train.py"),
        (2, "--log-dir=/proc/x train.py"),
        (2, "--log-dir=/proc/self/fd train.py"),
        (2, "--log-dir=file train.py"),
        (2, "--log-dir=file/x train.py"),
        (0, "TMPDIR=/proc --tee=3 train.py"),
        (2, "--failure-bundles=all --failure-bundle=/proc/x train.py"),
        (2, "--config=nowhere.toml train.py"),
        (2, "--config=syntax.py train.py"),
        (2, "--event-log-handler=jsonl train.py"),
        (0, "--event-log-handler=jsonl --log-dir=logs train.py"),
        (2, "--event-log-handler=jsonl --event-conf=jsonl.keep=x --log-dir=logs train.py"),
        (2, "--event-log-handler=console --event-conf=console.keys=x train.py"),
        (0, "--rdzv-id= train.py"),
        (2, "--rdzv-backend=c10d --rdzv-conf=store_type=file --rdzv-endpoint=/proc/x train.py"),
        (2, "--nproc-per-node=0 train.py"),
        (2, "--node-rank=3 train.py"),
        (2, "--port-range=5-3 train.py"),
        (2, "--max-restarts=3,hang train.py"),
        (2, "--health-check=command:/nowhere train.py"),
        (2, "--inject=nope train.py"),
        (2, "--tee=7 train.py"),
        (2, "--restart-on=( train.py"),
    ],
)
def test_the_exit_codes_of_a_launch_and_of_its_dry_run(code, line, tmp_path, monkeypatch, capfd):
    """A dry run refuses what a launch refuses, and what fails before the script's first line."""
    make_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line)
    while "=" in words[0] and not words[0].startswith("-"):
        name, _, value = words.pop(0).partition("=")
        monkeypatch.setenv(name, value)
    assert main(words) == code, capfd.readouterr().err
    capfd.readouterr()
    planned = main(["--dry-run", *words])
    assert planned == (2 if code else 0)
    assert len(capfd.readouterr().err.splitlines()) <= bool(code)


def test_a_dry_run_does_not_know_what_the_script_does(tmp_path, monkeypatch):
    make_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert [main([*words, "exits.py"]) for words in ([], ["--dry-run"])] == [7, 0]


def test_a_token_that_the_backend_does_not_use(tmp_path, monkeypatch):
    monkeypatch.setenv("PLAUNCH_RDZV_TOKEN", "x" * 32)
    script = tmp_path / "train.py"
    script.touch()
    static = ["--nnodes=2", "--master-addr=127.0.0.1", "--node-rank=0"]
    with pytest.raises(UsageError, match="does not sign"):
        run(["--dry-run", *static, str(script)])


def test_the_host_of_the_workers_store(plan_of, monkeypatch):
    monkeypatch.delenv("USE_LIBUV", raising=False)  # which chooses rank 0
    argvs = ([], ["-p", "no:worker_store"], ["--worker-store=rank0"])
    plans = [plan_of(*argv, "train.py")["workers"][0]["environment"] for argv in argvs]
    assert [env["TORCHELASTIC_USE_AGENT_STORE"] for env in plans] == ["True", "False", "False"]


ENDING = """
import os, sys
from plaunch.cli import main
from plaunch.plugin import hookimpl
from plaunch_logs_default import DefaultLogsSpecs
class Silent(DefaultLogsSpecs):
    def planned(self, run_id, local_rank):
        sys.exit(0)
class Plugin:
    @hookimpl
    def plaunch_logs_specs(self):
        return {"silent": Silent}
os.environ["PLAUNCH_LAUNCHER"] = str(os.getpid())
code = main(["--dry-run", "--logs-specs=silent", "--no-python", "true"], plugins=[Plugin()])
print("code", code, file=sys.stderr)
"""


def test_a_logs_spec_that_ends_the_process():
    done = run_python("-c", ENDING)
    assert "called sys.exit(0)" in done.stderr
    assert done.stderr.endswith("code 110\n")
    assert done.stdout == ""
