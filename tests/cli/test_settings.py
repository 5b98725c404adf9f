"""From options to a configuration, and to the workers' command."""

from __future__ import annotations

import dataclasses
import sys
from types import ModuleType

import plaunch_worker_store.options
import pytest
from plaunch import LaunchConfig
from plaunch.agent.worker import WORKER_STORES
from plaunch.cli import run_script_path, settings
from plaunch.cli.parser import OptionTable, parse
from plaunch.cli.settings import fill_in, parse_rdzv_conf, worker_command
from plaunch.errors import UsageError
from plaunch.options import Option
from plaunch.plugin.kinds import DEVICE_COUNTS, LOGS_SPECS, RENDEZVOUS
from plaunch.plugin.options import PluginOptions
from plaunch.process import Std
from plaunch_logs_default import DefaultLogsSpecs
from plaunch_rendezvous_static import create_static_handler

from helpers.programs import run_python


class Manager:
    """Stands for a plugin manager with one logs spec, two backends and a few device counters."""

    counters = {"six": lambda: 6, "none": lambda: 0}  # noqa: RUF012

    def get(self, kind, name):
        if kind is LOGS_SPECS:
            assert name == "default"
            return DefaultLogsSpecs
        if kind is RENDEZVOUS:
            return create_static_handler if name == "static" else len
        assert kind is DEVICE_COUNTS
        if name not in self.counters:
            raise UsageError(f"no device counter {name!r}")
        return self.counters[name]

    def call(self, kind, name, function):
        return function()

    def make(self, kind, name, **named):
        return self.get(kind, name)(**named)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", raising=False)


def config(*argv, **environ):
    return settings.config_from_args(parse([*argv, "x.py"], environ), Manager())


def test_the_default_is_one_worker_on_one_node_with_an_id_of_its_own():
    first, second = config(), config()
    assert (first.min_nodes, first.max_nodes, first.nproc_per_node) == (1, 1, 1)
    assert (first.rdzv_backend, first.rdzv_endpoint) == ("static", "")
    assert first.run_id != second.run_id
    assert (first.role, first.max_restarts, first.shutdown_timeout) == ("default", 0, 30)
    assert first.worker_env == {}


def test_options_arrive():
    result = config(
        "--nnodes=2:4",
        "--nproc-per-node=six",
        "--rdzv-backend=other",
        "--rdzv-endpoint=node0:1",
        "--rdzv-id=job",
        "--rdzv-conf=join_timeout=5, is_host = 1",
        "--max-restarts=3",
        "--role=trainer",
        "--shutdown-timeout=1.5",
        "--event-log-handler=console",
        "--signal-policy=notify",
        "--signals-to-handle=SIGTERM",
        "--local-addr=10.0.0.1",
        "--monitor-interval=2",
    )
    assert (result.min_nodes, result.max_nodes, result.nproc_per_node) == (2, 4, 6)
    assert (result.rdzv_backend, result.rdzv_endpoint, result.run_id) == ("other", "node0:1", "job")
    assert result.rdzv_configs == {"join_timeout": "5", "is_host": "1"}
    assert (result.max_restarts, result.role, result.shutdown_timeout) == (3, "trainer", 1.5)
    assert (result.event_log_handler, result.signal_policy) == ("console", "notify")
    assert (result.signals_to_handle, result.local_addr) == ("SIGTERM", "10.0.0.1")
    assert result.monitor_interval == 2


def test_each_option_that_is_a_setting_arrives():
    given = {
        "role": "trainer",
        "rdzv_endpoint": "node0:1",
        "rdzv_backend": "other",
        "max_restarts": 3,
        "monitor_interval": 2.0,
        "start_method": "fork",
        "log_line_prefix_template": "${rank}",
        "local_addr": "10.0.0.1",
        "event_log_handler": "console",
        "signals_to_handle": "SIGTERM",
        "duplicate_stdout_filters": ["a", "b"],
        "duplicate_stderr_filters": ["c"],
        "virtual_local_rank": True,
        "shutdown_timeout": 1.5,
        "signal_policy": "notify",
        "restart_policy": "never",
        "keep_daemons": True,
        "exit_barrier_timeout": 2.5,
        "node_rank": 1,
        "port_range": (5, 9),
        "start_timeout": 7.0,
        "devices": ["3"],
        "worker_store": "rank0",
        "job_id": "kept",
    }
    fields = {field.name for field in dataclasses.fields(LaunchConfig)}
    args = parse(["x.py"], {"PET_NNODES": "2"})
    found = {option.dest for option in args.table if option.dest in fields}
    assert found == {*given, "nproc_per_node", "logs_specs"}
    for dest, value in given.items():
        args.give(dest, value, "the test")
    result = settings.config_from_args(args, Manager())
    assert {name: getattr(result, name) for name in given} == given


@pytest.mark.parametrize("text", ["'a=1,b=2'", '"a=1,b=2"', " 'a=1, b=2' ", "a=1,b=2"])
def test_quotes_that_no_shell_has_removed_are_dropped(text):
    assert parse_rdzv_conf(text) == {"a": "1", "b": "2"}


@pytest.mark.parametrize("text", ["'a=1,b=2", "'a=1,b=2\"", "'"])
def test_a_single_quote_is_not(text):
    try:
        options = parse_rdzv_conf(text)
    except UsageError:
        return
    assert options != {"a": "1", "b": "2"}


def test_a_filter_of_ranks_that_this_node_does_not_have_is_named(caplog):
    config("--nproc-per-node=2", "--local-ranks-filter=0-2,5")
    assert "--local-ranks-filter names local ranks 2,5, which this node" in caplog.text


def test_logs(tmp_path):
    result = config(
        f"--log-dir={tmp_path}", "--redirects=3", "--tee=0:1", "--local-ranks-filter=0,8-10"
    )
    expected = DefaultLogsSpecs(str(tmp_path), Std.ALL, {0: Std.OUT}, {0, 8, 9, 10})
    assert vars(result.logs_specs) == vars(expected)


@pytest.mark.parametrize(
    ("argv", "endpoint"),
    [
        (["--nnodes=2", "--master-addr=node0"], "node0:29500"),
        (["--nnodes=2", "--master-addr=::1", "--master-port=7"], "[::1]:7"),
        (["--nnodes=2", "--rdzv-endpoint=node1:8", "--master-port=7"], "node1:8"),
        (["--master-port=7"], "127.0.0.1:7"),
        (["--master-addr=node0"], "node0:0"),
    ],
)
def test_static_endpoints_are_torchruns(argv, endpoint):
    assert config(*argv).rdzv_endpoint == endpoint


def test_static_nodes_know_their_rank():
    result = config("--nnodes=3", "--node-rank=2", "--master-addr=node0")
    assert result.rdzv_configs == {"rank": 2}
    assert result.run_id == "none"


@pytest.mark.parametrize(
    ("argv", "environ", "role"),
    [
        ([], {}, "default"),
        (["--acme=x"], {}, "acme x"),
        ([], {"ACME_IS_HERE": ""}, "acme None"),
        (["--acme=x", "--role=given"], {}, "given"),
    ],
)
def test_an_option_of_a_plugin_fills_in_others(monkeypatch, argv, environ, role):
    acme = ModuleType("acme")

    def fill(args, manager):
        assert manager == "the manager"
        if args.is_given("role"):
            return ""
        args.give("role", f"acme {args.acme}", "acme")
        return "role from acme"

    acme.fill = fill
    monkeypatch.setitem(sys.modules, "acme", acme)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    option = Option(("--acme",), "more", fill="acme:fill", fill_variables=("ACME_IS_HERE",))
    args = parse([*argv, "x.py"], {}, OptionTable([PluginOptions("acme", "", (option,), "")]))
    assert fill_in(args, "the manager") == ("role from acme" if "acme" in role else "")
    assert args.role == role


def test_the_index_of_a_node_reaches_every_backend_if_it_was_given():
    other = ("--rdzv-backend=other", "--nnodes=4")
    assert config(*other).node_rank is None
    asked = config(*other, "--node-rank=2")
    assert (asked.node_rank, asked.rdzv_configs) == (2, {})
    assert config(*other, "--node-rank=0").node_rank == 0
    unasked = config("--nnodes=2", "--master-addr=node0")
    assert (unasked.node_rank, unasked.rdzv_configs) == (None, {"rank": 0})
    assert config(PET_NODE_RANK="1", PET_RDZV_BACKEND="other", PET_NNODES="2").node_rank == 1
    assert config("--standalone", "--node-rank=3").node_rank is None


def test_the_wait_for_other_nodes():
    assert config().exit_barrier_timeout == 300
    assert config("--exit-barrier-timeout=2.5").exit_barrier_timeout == 2.5
    assert config(PET_EXIT_BARRIER_TIMEOUT="7").exit_barrier_timeout == 7


def test_static_options_mean_nothing_to_other_backends(caplog):
    result = config("--rdzv-backend=other", "--master-addr=node0", "--master-port=7")
    assert result.rdzv_configs == {}
    assert "'other' does not use --master-addr, --master-port" in caplog.text


def test_standalone_overrides_with_a_warning(caplog):
    config("--standalone")
    assert caplog.text == ""
    result = config(
        "--standalone", "--rdzv-backend=other", "--rdzv-id=job", "--nnodes=3", "--master-port=7"
    )
    assert (result.rdzv_backend, result.rdzv_endpoint, result.max_nodes) == ("static", "", 1)
    assert result.run_id != "job"
    assert "overrides --rdzv-backend, --rdzv-id, --nnodes, --master-port" in caplog.text


@pytest.mark.parametrize(
    "option",
    [
        "--rdzv-backend=other",
        "--rdzv-endpoint=a:1",
        "--rdzv-id=job",
        "--rdzv-conf=join_timeout=5",
        "--nnodes=3",
        "--node-rank=1",
        "--master-addr=a",
        "--master-port=7",
    ],
)
def test_standalone_overrides_each_option_of_the_rendezvous(caplog, option):
    config("--standalone", option)
    assert caplog.messages == [f"--standalone overrides {option.partition('=')[0]}"]


def test_a_port_that_is_not_used_need_not_be_one(caplog):
    assert config("--standalone", "--master-port=123456").rdzv_endpoint == ""
    assert "overrides --master-port" in caplog.text
    config("--rdzv-backend=other", "--master-port=123456")
    assert "'other' does not use --master-port" in caplog.text
    assert config("--rdzv-endpoint=a:1", "--master-port=123456").rdzv_endpoint == "a:1"
    with pytest.raises(UsageError, match="--master-port is 123456, which is not a port number"):
        config("--master-port=123456")


def test_several_workers_get_one_thread_each_by_default(monkeypatch):
    assert config("--nproc-per-node=2").worker_env == {"OMP_NUM_THREADS": "1"}
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert config("--nproc-per-node=2").worker_env == {}


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--nproc-per-node=0", "--nproc-per-node is 0; a node runs at least one worker"),
        ("--nproc-per-node=-3", "--nproc-per-node is -3"),
        ("--nproc-per-node=many", "no device counter 'many'"),
        ("--nproc-per-node=none", "--nproc-per-node=none found no device on this node"),
        ("--nnodes=3:2", "--nnodes is '3:2'; it needs 0 < minimum <= maximum"),
        ("--nnodes=0", "--nnodes is '0'; it needs"),
        ("--nnodes=1:2:3", "--nnodes is '1:2:3'; write a number"),
        ("--nnodes=two", "--nnodes is 'two'"),
        ("--rdzv-conf=timeout", "--rdzv-conf has 'timeout' in 'timeout'; write key=value"),
        ("--rdzv-conf=a=1,=2", "--rdzv-conf has '=2'"),
        ("--rdzv-conf=a=1,a=2", "gives 'a' twice"),
        ("--redirects=4", "--redirects: '4' does not name streams"),
        ("--redirects=0:1,0:2", "--redirects: '0:1,0:2' names local rank 0 more than once"),
        ("--tee=x", "--tee: 'x' does not name"),
        ("--local-ranks-filter=0,a", "--local-ranks-filter has 'a' in '0,a'"),
        ("--local-ranks-filter=3-1", "--local-ranks-filter has '3-1'"),
        ("--signals-to-handle=SIGNOPE", "--signals-to-handle: 'SIGNOPE' is not a signal"),
        ("--signals-to-handle=SIGKILL", "'SIGKILL' cannot be handled"),
        ("--max-restarts=-1", "max_restarts is -1"),
        ("--monitor-interval=0", "--monitor-interval: '0' is not"),
        ("--node-rank=-1", "node rank -1"),
        ("--node-rank=1", "outside the job of 1 nodes"),
        ("--start-timeout=0", "--start-timeout: '0' is not"),
    ],
)
def test_bad_values_are_named(option, message):
    with pytest.raises(UsageError, match=message) as caught:
        config(option)
    assert "\n" not in str(caught.value)


def test_a_log_directory_that_is_a_file(tmp_path):
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(NotADirectoryError, match=str(path)):
        config(f"--log-dir={path}")


def test_the_choices_of_the_worker_store_are_those_that_a_configuration_takes():
    """They are written twice, as `--help` does without the rest."""
    [option] = plaunch_worker_store.options.OPTIONS
    assert option.choices == WORKER_STORES


def test_restarts_may_have_numbers_by_cause():
    found = config("--max-restarts=3,oom:0,hang:1")
    assert (found.max_restarts, found.max_restarts_by_cause) == (3, {"hang": 1, "oom": 0})
    found = config("--max-restarts=4", "--restart-policy=never")
    assert (found.max_restarts, found.max_restarts_by_cause) == (4, {})
    assert found.restart_policy == "never"


# --- the workers' command -------------------------------------------------------------------------

SCRIPT = """\
import pathlib, sys
pathlib.Path(sys.argv[1]).write_text(f"{__name__} {sys.argv[0]} {sys.path[0]}")
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def command(*argv):
    return worker_command(parse(argv, {}))


@pytest.fixture(autouse=True)
def _default_interpreter(monkeypatch):
    monkeypatch.delenv("PYTHON_EXEC", raising=False)


def test_what_is_run_is_unbuffered_under_this_interpreter_or_another(monkeypatch, script):
    assert command(script, "--lr", "1") == (sys.executable, ["-u", script, "--lr", "1"])
    assert command("-m", "pkg.train", "-x") == (sys.executable, ["-u", "-m", "pkg.train", "-x"])
    assert command("--no-python", "sh", "-c", "true") == ("sh", ["-c", "true"])
    monkeypatch.setenv("PYTHON_EXEC", "/bin/sh")
    assert command(script) == ("/bin/sh", ["-u", script])


def test_run_path(script, tmp_path):
    entrypoint, args = command("--run-path", script, str(tmp_path / "out"))
    assert entrypoint is run_script_path
    code = "import sys; from plaunch.cli import run_script_path; run_script_path(*sys.argv[1:])"
    run_python("-c", code, *args, check=True)
    assert (tmp_path / "out").read_text() == f"__main__ {script} {tmp_path}"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "there is no script to run"),
        ([""], "the name of the script is empty .''.; perhaps a variable"),
        (["  "], "the name of the script is empty .'  '."),
        (["-m", ""], "the name of the script is empty"),
        (["--no-python", " "], "the name of the script is empty"),
        (["nowhere.py"], "the script 'nowhere.py' does not exist"),
        (["--run-path", "nowhere.py"], "the script 'nowhere.py' does not exist"),
        (["--no-python", "-m", "x"], "--no-python and --module contradict each other for 'x'"),
        (["--run-path", "-m", "x"], "--run-path and --module contradict"),
        (["--no-python", "no-such-program"], "'no-such-program', which is not an executable"),
    ],
)
def test_mistakes_are_named(argv, message):
    with pytest.raises(UsageError, match=message):
        command(*argv)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["trian.py"], "'trian.py' does not exist; did you mean 'train.py'?"),
        (["./sub/trian.py"], "does not exist; did you mean './sub/train.py'?"),
        (["train"], "'train' does not exist; did you mean 'train.py'?"),
        (["evaluate"], "'evaluate' does not exist (current folder: "),
        (["evaluate"], "; give its path, or -m for a module, or --no-python for a program"),
        (["python3", "train.py"], "plaunch starts python itself: leave out this word"),
        (["train.py --lr 3"], "leave out the quotes around 'train.py --lr 3'"),
        (["sub"], "'sub' is a folder without a __main__.py"),
        (["--nproc-per-node", "train.py"], "'train.py' is the value of --nproc-per-node"),
        (["-r", "3", "-t", "train.py"], "'train.py' is the value of --tee"),
        (["--no-python", "./run.sh"], "a file that may not be executed; chmod +x ./run.sh"),
        (
            ["--no-python", "go.sh"],
            "not found on PATH; for the file in the current folder write ./",
        ),
    ],
)
def test_a_slip_is_answered_with_what_was_meant(tmp_path, monkeypatch, argv, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for name in ("train.py", "sub/train.py", "run.sh", "go.sh"):
        (tmp_path / name).write_text("")
    (tmp_path / "go.sh").chmod(0o755)
    with pytest.raises(UsageError) as caught:
        command(*argv)
    assert message in str(caught.value)


@pytest.mark.parametrize("options", [["--run-path"], ["--run-path", "--no-python"]])
def test_no_program_and_no_module_are_suggested_with_run_path(options):
    with pytest.raises(UsageError) as caught:
        command(*options, "nowhere.py")
    assert str(caught.value).endswith("; give its path")


def test_a_script_that_cannot_be_reached_is_not_called_missing(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UsageError, match=r"loop/x\.py' cannot be read: Too many levels"):
        command(str(tmp_path / "loop" / "x.py"))


UNREADABLE = """
import os, sys
from plaunch.cli import parse, worker_command
args = parse(sys.argv[1:])
if os.geteuid() == 0:
    os.setuid(65534)  # root may search all folders
worker_command(args)
"""


def test_a_folder_that_may_not_be_searched_is_named(tmp_path):
    (tmp_path / "x.py").touch()
    tmp_path.chmod(0)
    done = run_python("-c", UNREADABLE, str(tmp_path / "x.py"))
    tmp_path.chmod(0o700)
    assert "cannot be read: Permission denied; check the permissions of its fol" in done.stderr


def test_a_script_that_this_user_may_not_read(tmp_path):
    (tmp_path / "x.py").touch(0o000)
    tmp_path.chmod(0o755)
    done = run_python("-c", UNREADABLE, "x.py", cwd=tmp_path)
    assert "the script 'x.py' cannot be read by this user" in done.stderr


def test_an_empty_run_id_is_replaced_as_in_code():
    assert len(config("--rdzv-id=").run_id) == 16
    assert config("--rdzv-id=", "--nnodes=2", "--master-addr=127.0.0.1").run_id == "none"


def test_a_folder_that_python_runs_is_a_script(tmp_path):
    (tmp_path / "__main__.py").write_text("")
    assert command(str(tmp_path)) == (sys.executable, ["-u", str(tmp_path)])


def test_an_interpreter_that_does_not_exist(monkeypatch, script):
    monkeypatch.setenv("PYTHON_EXEC", "/no/python")
    with pytest.raises(UsageError, match="PYTHON_EXEC names '/no/python'"):
        command(script)
