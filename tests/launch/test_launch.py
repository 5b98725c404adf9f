"""Launching from code, with real workers."""

from __future__ import annotations

import importlib.util
import pathlib
import signal
import sys
import time

import pytest
from plaunch import LaunchConfig, elastic_launch, hookimpl, launch_agent, threads
from plaunch.agent import Extension
from plaunch.agent.poller import LoopWatchdog
from plaunch.cli import main, run
from plaunch.errors import PluginError, SignalException, UsageError
from plaunch.plugin import CallLimits
from plaunch.plugin.manager import PluginManager
from plaunch.process import ChildFailedError
from plaunch.testing import FakeRendezvous

from helpers.faults import raising
from helpers.hooks import plugin_of
from helpers.processes import forks_beside_threads
from helpers.programs import run_python
from helpers.waiting import wait_until

# A spawned worker imports what it runs by name.
_FILE = pathlib.Path(__file__).with_name("functions_to_launch.py")
_SPEC = importlib.util.spec_from_file_location("functions_to_launch", _FILE)
functions = importlib.util.module_from_spec(_SPEC)
sys.modules["functions_to_launch"] = functions
_SPEC.loader.exec_module(functions)


@pytest.fixture(autouse=True)
def _importable_in_workers(monkeypatch):
    monkeypatch.syspath_prepend(str(_FILE.parent))


def config(**changes):
    settings = {"min_nodes": 1, "max_nodes": 1, "nproc_per_node": 2, "max_restarts": 0, **changes}
    return LaunchConfig(**settings)


@pytest.mark.parametrize("start_method", ["spawn", "fork", "forkserver"])
def test_functions_return_their_values_by_global_rank(start_method):
    launch = elastic_launch(config(start_method=start_method), functions.rank_and_arguments)
    assert launch("a", 2) == {0: (0, ("a", 2)), 1: (1, ("a", 2))}


def test_a_missing_run_id_is_made_up_and_written_back():
    settings = config()
    values = elastic_launch(settings, functions.environment)("TORCHELASTIC_RUN_ID")
    assert set(values.values()) == {settings.run_id}
    assert settings.run_id


@pytest.mark.parametrize(
    ("wrong", "exit_code", "said"),
    [("no luck", 1, "ValueError: no luck"), (93, 93, "exit code 93")],
)
def test_a_failing_function_is_raised_with_its_traceback_or_exit_code(wrong, exit_code, said):
    with pytest.raises(ChildFailedError, match=said) as caught:
        elastic_launch(config(), functions.fail_on_rank_1)(wrong)
    rank, failure = caught.value.get_first_failure()
    assert (rank, failure.global_rank, failure.exitcode) == (1, 1, exit_code)
    assert caught.value.exit_code == exit_code


def test_a_restart_runs_all_workers_again():
    launch = elastic_launch(config(max_restarts=2), functions.succeed_on_second_attempt)
    assert launch() == {0: 1, 1: 1}


def test_more_variables_for_all_workers():
    launch = elastic_launch(config(worker_env={"COLOUR": "blue"}), functions.environment)
    assert launch("COLOUR") == {0: "blue", 1: "blue"}


class Backend:
    """A plugin in code: a rendezvous backend, and hooks that record their calls."""

    def __init__(self):
        self.handler = FakeRendezvous("job")
        self.calls = []

    @hookimpl
    def plaunch_rendezvous_backends(self):
        return {"pretend": self.create}

    def create(self, params):
        self.params = params
        return self.handler

    @hookimpl
    def plaunch_worker_env(self, worker):
        return {"COLOUR": f"blue-{worker.global_rank}"}

    @hookimpl
    def plaunch_state_changed(self, new):
        self.calls.append(new.name)

    @hookimpl
    def plaunch_agent_finished(self, group, result):
        self.calls.append((group.run_id, dict(result.return_values)))


def test_plugins_for_one_launch_take_part_in_it():
    backend = Backend()
    settings = config(
        rdzv_backend="pretend", rdzv_endpoint="there", rdzv_configs={"key": "value"}, run_id="job"
    )
    launch = elastic_launch(settings, functions.environment, plugins=[backend])
    values = {0: "blue-0", 1: "blue-1"}
    assert launch("COLOUR") == values
    assert backend.calls == ["HEALTHY", "SUCCEEDED", ("job", values)]
    assert (backend.params.endpoint, backend.params.get("key")) == ("there", "value")
    assert backend.handler.shut_down
    with pytest.raises(UsageError, match="'pretend'"):
        elastic_launch(settings, functions.environment)("COLOUR")


def test_the_command_line_takes_plugins_too(capfd, script):
    script.write_text("import os; print(os.environ['COLOUR'])\n")
    assert run(["--rdzv-backend=pretend", str(script)], plugins=[Backend()]) == {0: None}
    assert main(["--rdzv-backend=pretend", str(script)], plugins=[Backend()]) == 0
    assert capfd.readouterr().out == "blue-0\nblue-0\n"


def test_a_manager_of_ones_own():
    manager = PluginManager.create([Backend()])
    settings = config(rdzv_backend="pretend", nproc_per_node=1)
    assert launch_agent(settings, functions.environment, ["COLOUR"], manager=manager) == {
        0: "blue-0"
    }
    with pytest.raises(UsageError, match="not to both"):
        launch_agent(settings, functions.environment, [], plugins=[Backend()], manager=manager)


def test_nothing_to_launch():
    with pytest.raises(UsageError, match="nothing to launch"):
        launch_agent(config(), None, [])


# Factories that fail in ways that are nobody else's fault.
fail = raising(KeyError("oops"))
BROKEN = plugin_of(
    "Broken",
    plaunch_rendezvous_backends=lambda: {"broken": fail},
    plaunch_event_handlers=lambda: {"broken": fail},
    plaunch_signal_policies=lambda: {"broken": fail},
    plaunch_device_counts=lambda: {"broken": fail},
)


@pytest.mark.parametrize(
    ("option", "label"),
    [
        ("--rdzv-backend=broken", "rendezvous backend 'broken' (--rdzv-backend) of module helpers"),
        ("--event-log-handler=broken", "event handler 'broken'"),
        ("--signal-policy=broken", "signal policy 'broken'"),
        ("--nproc-per-node=broken", "device counter 'broken'"),
    ],
)
def test_a_component_that_cannot_be_created_is_named(option, label, script, capsys):
    with pytest.raises(PluginError) as caught:
        run([option, str(script)], plugins=[BROKEN])
    assert label in str(caught.value)
    assert main([option, str(script)], plugins=[BROKEN]) == 110
    said = capsys.readouterr().err.splitlines()
    assert len([line for line in said if not line.startswith("plaunch: run id ")]) == 1


def test_a_stop_signal_leaves_the_rendezvous_without_shutting_it_down(script):
    """A node that was told to stop may come back; torchrun does not close either."""
    script.write_text(
        "import os, signal, time\nos.kill(os.getppid(), signal.SIGTERM)\ntime.sleep(60)\n"
    )
    backend = Backend()
    left = []
    backend.handler.leave = lambda: left.append(True) or True
    with pytest.raises(SignalException) as caught:
        run(["--rdzv-backend=pretend", str(script)], plugins=[backend])
    assert caught.value.sigval is signal.SIGTERM
    assert left == [True]
    assert not backend.handler.shut_down


def test_an_unexpected_exception_is_reported_as_an_internal_error(monkeypatch, capsys, script):
    explode = raising(ZeroDivisionError("impossible"))
    monkeypatch.setattr("plaunch.launch.launch_agent", explode)
    assert main([str(script)]) == 1
    shown = capsys.readouterr().err
    assert "internal error: ZeroDivisionError: impossible" in shown
    assert "Traceback" in shown


BROKEN_BACKEND = """
import plaunch
from plaunch.testing import FakeRendezvous

class Broken(FakeRendezvous):
    def next_rendezvous(self):
        raise ValueError("no switch")

@plaunch.hookimpl
def plaunch_rendezvous_backends():
    return {"broken": lambda params: Broken()}
"""


def test_a_program_gets_an_error_that_names_the_plugin(monkeypatch, tmp_path):
    (tmp_path / "acme_backend.py").write_text(BROKEN_BACKEND)
    monkeypatch.syspath_prepend(str(tmp_path))
    manager = PluginManager.create(words=["acme_backend"])
    message = (
        r"^plugin 'acme_backend' \(module acme_backend\) failed in next_rendezvous: ValueError"
    )
    with pytest.raises(PluginError, match=message) as caught:
        launch_agent(config(rdzv_backend="broken"), "/bin/true", [], manager=manager)
    assert isinstance(caught.value.__cause__, ValueError)


@forks_beside_threads
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_a_fork_during_a_hook_that_has_not_returned_is_logged(caplog, gate, start_method):
    stands = plugin_of(plaunch_before_rendezvous=lambda: gate.wait(60))
    manager = PluginManager.create([stands], limits=CallLimits(notification=0.01))
    function, settings = functions.rank_and_arguments, config(start_method=start_method)
    found = launch_agent(settings, function, [], manager=manager)
    assert found == {0: (0, ()), 1: (1, ())}
    said = [record.getMessage() for record in caplog.records]
    warned = [text for text in said if "plaunch_before_rendezvous; workers are forked" in text]
    assert len(warned) == (start_method == "fork")


def test_the_loop_is_alive_while_plugins_take_their_time(monkeypatch):
    """Each of them is waited for within a bound; together they may take longer than one turn."""
    found = []

    class Watchdog(LoopWatchdog):
        def __init__(self, bound, *, progress):
            found.append(progress)
            super().__init__(bound, progress=progress)

    def slow():
        began = time.monotonic()
        wait_until(lambda: found[0]() > began, "the wait for the hook is progress")
        return {"SAID": "True"}

    monkeypatch.setattr(threads, "UNHURRIED", 0.01)
    monkeypatch.setattr("plaunch.launch.session.LoopWatchdog", Watchdog)
    plugin = plugin_of(plaunch_worker_env=slow)
    launch = elastic_launch(config(nproc_per_node=1), functions.environment, plugins=[plugin])
    assert launch("SAID") == {0: "True"}


# --- several nodes without an endpoint ------------------------------------------------------------


@pytest.mark.parametrize("backend", ["static", "c10d", "etcd", "etcd-v2"])
def test_several_nodes_without_an_endpoint_are_refused_before_anything_starts(backend):
    created = []

    def plaunch_extensions(context):
        created.append(context)
        return []

    config = LaunchConfig(1, 4, 1, rdzv_backend=backend)
    plugins = [plugin_of(plaunch_extensions=plaunch_extensions)]
    launch = elastic_launch(config, "/bin/true", plugins=plugins)
    with pytest.raises(UsageError, match=rf"4 nodes .* backend '{backend}' need an address"):
        launch()
    assert not created


def test_they_are_refused_without_torch():
    code = (
        "import sys\nfrom plaunch.cli import main\n"
        "code = main(['--nnodes=1:4', '--rdzv-backend=c10d', '--no-python', 'true'])\n"
        "print(code, 'torch' in sys.modules)"
    )
    done = run_python("-c", code)
    assert (done.stdout, done.stderr.count("4 nodes (--nnodes)")) == ("2 False\n", 1), done.stderr


@pytest.mark.parametrize(("nodes", "is_shared"), [(1, False), (2, True)])
def test_a_missing_run_id(nodes, is_shared):
    """All nodes of a job need the same one."""
    config = LaunchConfig(nodes, nodes, 1, rdzv_backend="nope")
    with pytest.raises(UsageError):
        launch_agent(config, "true", [])
    assert (config.run_id == "none") is is_shared


def test_extensions_continue_once_workers_run():
    calls = []

    class Threads(Extension):
        def rest(self):
            calls.append("rest")

        def release(self):
            calls.append("release")

    plugin = plugin_of(plaunch_extensions=lambda context: [Threads()])
    elastic_launch(config(start_method="fork"), functions.environment, plugins=[plugin])("RANK")
    assert calls == ["rest", "release"]
