"""`plaunch_torchrun.run`: torchrun's functions for programs."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass, field

import pytest
from plaunch.errors import SignalException, UsageError
from plaunch.process import ChildFailedError, LogsSpecs, Std, to_map
from plaunch_rendezvous_static import SingleNodeRendezvous
from plaunch_torchrun import launch, registry
from plaunch_torchrun import run as torchrun
from plaunch_torchrun.launcher import elastic_launch, launch_agent
from plaunch_torchrun.parser import own_arguments, take_defaults
from plaunch_torchrun.translate import own_config, own_logs_specs

from helpers.programs import run_python


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        "import os, sys\n"
        "path = os.path.join(os.path.dirname(__file__), os.environ['RANK'])\n"
        "open(path, 'w').write(' '.join(sys.argv[1:]))\n"
        "sys.exit(int(os.environ.get('CODE', '0')))\n"
    )
    return path


def parse(*words):
    return torchrun.parse_args(list(words))


def test_the_namespace_is_torchruns():
    torchs = pytest.importorskip("torch.distributed.run")
    words = ["--nproc_per_node", "4", "-m", "train", "--nnodes", "7"]
    wanted = vars(torchs.parse_args(words))
    wanted.pop("print_completion", None)  # plaunch's own command line has it
    if wanted["master_port"] == 29500:  # the default of older versions
        wanted["master_port"] = None
    had = vars(parse(*words))
    # An option that is not given is an empty text or None.
    assert {name: had.get(name, "none") or None for name in wanted} == {
        name: value or None for name, value in wanted.items()
    }


def test_the_options_are_torchruns():
    torchs = pytest.importorskip("torch.distributed.run")
    known = {*torchrun.get_args_parser()._option_string_actions}
    known |= {"--print-completion", "--print_completion"}  # plaunch's own command line has it
    assert set(torchs.get_args_parser()._option_string_actions) <= known


@pytest.mark.parametrize("spelt", ["--rdzv-backend", "--rdzv_backend"])
def test_both_spellings(spelt):
    assert parse(spelt, "c10d", "train.py").rdzv_backend == "c10d"
    assert parse(f"{spelt}=c10d", "train.py").rdzv_backend == "c10d"


def test_a_caller_adds_arguments():
    parser = torchrun.get_args_parser()
    parser.add_argument("--precision", action=torchrun.env, default="fp32")
    parser.add_argument("--fast", action=torchrun.check_env)
    args = parser.parse_args(["--precision=bf16", "--fast", "train.py", "--precision=x"])
    assert (args.precision, args.fast) == ("bf16", True)
    assert args.training_script_args == ["--precision=x"]


def test_variables(monkeypatch):
    monkeypatch.setenv("PET_NNODES", "2:3")
    monkeypatch.setenv("PET_MAX_RESTARTS", "5")
    monkeypatch.setenv("PET_STANDALONE", "true")
    monkeypatch.setenv("PET_EVENT_CONF", "jsonl.path=a")
    args = parse("train.py")
    assert (args.nnodes, args.max_restarts, args.standalone) == ("2:3", 5, True)
    assert args.event_conf == ["jsonl.path=a"]
    assert own_arguments(args).event_conf == ["jsonl.path=a"]
    assert parse("--nnodes=4", "train.py").nnodes == "4"
    monkeypatch.setenv("PET_STANDALONE", "")  # as Kubeflow's training operator turns it on
    assert parse("train.py").standalone is True
    monkeypatch.setenv("PET_STANDALONE", "maybe")
    with pytest.raises(UsageError, match="PET_STANDALONE"):
        torchrun.get_args_parser()


def test_an_argument_that_must_be_given_or_in_its_variable(monkeypatch):
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("-f", "--foo", action=torchrun.env, required=True)
    with pytest.raises((SystemExit, argparse.ArgumentError)):
        parser.parse_args([])
    monkeypatch.setenv("PET_FOO", "bar")
    parser = argparse.ArgumentParser()
    parser.add_argument("-f", "--foo", action=torchrun.env, required=True)
    assert parser.parse_args([]).foo == "bar"


def test_abbreviations_do_not_exist():
    with pytest.raises(SystemExit):
        parse("--rdzv-back=c10d", "train.py")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, {"nnodes": "1:1", "master_addr": None, "logs_specs": "default", "node_rank": 0}),
        ({"nproc_per_node": 4}, {"nproc_per_node": "4"}),
        ({"master_port": "1234", "monitor_interval": "5"}, {"master_port": 1234}),
        ({"nnodes": "2"}, {"master_addr": "127.0.0.1", "node_rank": 0}),
        ({"rdzv_backend": "c10d"}, {"node_rank": None, "master_addr": None}),
        ({"rdzv_backend": "c10d", "node_rank": 1}, {"node_rank": 1}),
        ({"duplicate_stdout_filters": []}, {"duplicate_stdout_filters": []}),
        ({"role": None}, {"role": "default"}),
        ({"nnodes": "2", "scheduler": "none"}, {"master_addr": "127.0.0.1", "scheduler": "none"}),
        ({"max_restarts": 3, "run_path": True}, {"max_restarts": 3, "run_path": True}),
        ({"duplicate_stdout_filters": ["a,b"]}, {"duplicate_stdout_filters": ["a,b"]}),
        ({"port_range": (1, 2), "event_conf": ["a.b=c"]}, {"port_range": (1, 2)}),
        ({"training_script_args": ["--role", "x"]}, {"role": "default"}),
    ],
)
def test_the_settings_of_a_namespace(given, wanted):
    values = {**vars(parse("train.py")), **given}
    own = own_arguments(argparse.Namespace(**values))
    take_defaults(own)
    assert {name: vars(own)[name] for name in wanted} == wanted


def test_a_namespace_with_few_attributes():
    own = own_arguments(argparse.Namespace(training_script="train.py"))
    assert own.training_script_args == []
    assert own.sources["nnodes"] == "default"


def test_a_value_that_is_malformed():
    with pytest.raises(UsageError, match="--master-port"):
        own_arguments(argparse.Namespace(training_script="x", master_port="abc"))


def test_a_configuration_from_arguments(script):
    args = parse("--nproc-per-node=2", "--max-restarts=1", "--role=r", str(script), "-x")
    config, entrypoint, arguments = torchrun.config_from_args(args)
    assert (config.nproc_per_node, config.max_restarts, config.role) == (2, 1, "r")
    assert (entrypoint, arguments) == (sys.executable, ["-u", str(script), "-x"])


def test_a_local_rank_for_scripts(script):
    args = launch.parse_args([str(script), "-x"])
    assert torchrun.get_use_env(args) is False
    assert torchrun.config_from_args(args)[2] == [
        "-u",
        str(script),
        "--local-rank=${local_rank}",
        "-x",
    ]
    args = launch.parse_args(["--use_env", str(script), "-x"])
    assert torchrun.config_from_args(args)[2] == ["-u", str(script), "-x"]


def test_a_program_gets_no_local_rank():
    with pytest.raises(ValueError, match="--use-env"):
        launch.main(["--no-python", "/bin/true"])


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["x.py", "a"], ["x.py", "--local-rank=${local_rank}", "a"]),
        (["--use_env", "x.py", "--use-env"], ["x.py", "--use-env"]),
        (["--use_env", "--use-env", "--", "x.py", "a"], ["--", "x.py", "a"]),
        (
            ["--role=r", "x.py", "--use-env"],
            ["--role=r", "x.py", "--local-rank=${local_rank}", "--use-env"],
        ),
        (["--nnodes", "2", "x.py"], ["--nnodes", "2", "x.py", "--local-rank=${local_rank}"]),
        (["--help"], ["--help"]),
        (["--list-plugins"], ["--list-plugins"]),
    ],
)
def test_the_command_line_of_launch(words, wanted, monkeypatch):
    monkeypatch.setattr(argparse.ArgumentParser, "exit", lambda *_: None)
    monkeypatch.setattr(argparse.ArgumentParser, "print_help", lambda *_: None)
    assert launch.command_line(words) == wanted


def test_launch_as_a_program(script):
    done = run_python("-m", "plaunch_torchrun.launch", "--no-python", str(script))
    assert done.returncode == 2
    assert done.stderr == (
        "plaunch: error: --no-python needs --use-env here: a program accepts no --local-rank\n"
    )


def test_running_arguments(script):
    torchrun.run(parse("--nproc-per-node=2", str(script), "a", "${local_rank}"))
    assert [(script.parent / rank).read_text() for rank in "01"] == ["a 0", "a 1"]


def test_the_main_function_raises(script, monkeypatch):
    monkeypatch.setenv("CODE", "7")
    with pytest.raises(ChildFailedError) as raised:
        torchrun.main([str(script)])
    assert raised.value.exit_code == 7


@pytest.mark.parametrize(
    ("values", "endpoint"),
    [
        ({"rdzv_backend": "static", "rdzv_endpoint": ""}, "h:7"),
        ({"rdzv_backend": "static", "rdzv_endpoint": "", "master_port": None}, "h:29500"),
        ({"rdzv_backend": "static", "rdzv_endpoint": "x:1"}, "x:1"),
        ({"rdzv_backend": "c10d", "rdzv_endpoint": ""}, ""),
    ],
)
def test_the_endpoint(values, endpoint):
    args = argparse.Namespace(**{"master_addr": "h", "master_port": 7, **values})
    assert torchrun.get_rdzv_endpoint(args) == endpoint


@pytest.mark.parametrize("nnodes", ["2:20:30", "a", "3:2", "0"])
def test_numbers_of_nodes_that_torchrun_refuses_with_one_of_two_types(nnodes):
    with pytest.raises(RuntimeError) as raised:
        torchrun.parse_min_max_nnodes(nnodes)
    assert isinstance(raised.value, ValueError)


def test_counting_workers():
    assert torchrun.determine_local_world_size("3") == 3
    assert torchrun.determine_local_world_size("cpu") >= 1
    assert torchrun.parse_min_max_nnodes("2:4") == (2, 4)
    with pytest.raises(ValueError, match="nothing"):
        torchrun.determine_local_world_size("nothing")


@dataclass
class Config:
    """A configuration of torch with an additional field, as in a subclass."""

    min_nodes: int = 1
    max_nodes: int = 1
    nproc_per_node: int = 1
    logs_specs: object = None
    run_id: str = "job"
    rdzv_backend: str = "static"
    rdzv_configs: dict = field(default_factory=lambda: {"timeout": 900, "rank": 0})
    max_restarts: int = 0
    metrics_cfg: dict = field(default_factory=dict)
    extra: str = "mine"


def test_a_configuration_of_torchs():
    config = Config()
    own = own_config(config)
    assert isinstance(own, torchrun.LaunchConfig)
    assert (own.run_id, own.max_restarts, own.rdzv_configs) == ("job", 0, {"rank": 0})
    assert config.rdzv_configs == {"timeout": 900, "rank": 0}
    assert own_config(Config(rdzv_configs={"timeout": 5})).rdzv_configs == {"timeout": 5}
    assert own_config(own) is own


def test_an_invalid_configuration():
    with pytest.raises(UsageError, match="is not a LaunchConfig"):
        own_config(object())
    with pytest.raises(UsageError, match="is not a LogsSpecs"):
        own_logs_specs(object())


def test_logs_specs_of_torchs(tmp_path):
    torchs = pytest.importorskip("torch.distributed.elastic.multiprocessing")
    specs = torchs.DefaultLogsSpecs(log_dir=str(tmp_path), redirects=torchs.Std.OUT)
    own = own_logs_specs(specs)
    assert isinstance(own, LogsSpecs)
    assert repr(own) == repr(specs)
    envs = {0: {"TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_RUN_ID": "7"}}
    dest = own.reify(envs)
    assert dest.stdouts[0].startswith(own.root_log_dir)
    assert dest.stdouts[0].endswith("attempt_0/0/stdout.log")
    assert dest.stderrs == {0: ""}
    assert envs[0]["TORCHELASTIC_ERROR_FILE"] == dest.error_files[0]
    own.close(succeeded=True)
    config = torchrun.LaunchConfig(1, 1, 1, logs_specs=specs)
    assert isinstance(own_config(config).logs_specs, LogsSpecs)


def test_torchs_streams():
    torchs = pytest.importorskip("torch.distributed.elastic.multiprocessing")
    assert to_map(torchs.Std.ERR, 2) == {0: Std.ERR, 1: Std.ERR}
    assert to_map({1: torchs.Std.OUT}, 2) == {0: Std.NONE, 1: Std.OUT}


def test_launching_with_a_registered_backend(script, monkeypatch):
    made = []

    class Mine(SingleNodeRendezvous):
        def get_backend(self):
            return "mine"

    def create(params):
        made.append(params.run_id)
        return Mine(params.run_id)

    known = registry.RendezvousHandlerRegistry()
    known.register("mine", create)
    monkeypatch.setattr(registry, "rendezvous_handler_registry", known)
    config = Config(rdzv_backend="mine", rdzv_configs={})
    values = elastic_launch(config, sys.executable)(str(script), "x")
    assert values == {0: None}
    assert made == ["job"]
    assert (script.parent / "0").read_text() == "x"


def test_a_health_check_server(script):
    said = []

    class Server:
        def start(self):
            said.append("start")

        def stop(self):
            said.append("stop")

    config = Config()
    elastic_launch(config, sys.executable, Server())(str(script))
    assert said == ["start", "stop"]


def test_a_signal_is_torchs_too(script):
    torchs = pytest.importorskip("torch.distributed.elastic.multiprocessing.api")
    words = f"kill -TERM {os.getpid()}; exec sleep 60"
    with pytest.raises(torchs.SignalException) as raised:
        launch_agent(Config(), "/bin/sh", ["-c", words])
    assert isinstance(raised.value, SignalException)
