"""The stream of events of real launches, and handlers that would rather harm them."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from plaunch import LaunchConfig, elastic_launch, hookimpl, launch_agent, parts
from plaunch.cli import main, run
from plaunch.errors import PluginError, RendezvousError, SignalException, UsageError
from plaunch.events import Event
from plaunch.process import ChildFailedError
from plaunch.testing import FakeRendezvous
from plaunch.threads import FinalWork
from plaunch_events import COMMON_KEYS, SCHEMA
from plaunch_logs_default import DefaultLogsSpecs

from helpers.faults import raising
from helpers.hooks import plugin_of
from helpers.pipes import full_pipe
from helpers.programs import run_python, running_python

DEADLINE = 60.0  # seconds


class Kept:
    """A plugin in code: event handlers of several sorts."""

    def __init__(self):
        self.events = []
        self.contexts = []
        self.closed = 0
        self.opened = threading.Event()

    @hookimpl
    def plaunch_event_handlers(self):
        def kept(context):
            self.contexts.append(context)
            return self

        kept.options = frozenset({"colour", "size"})
        return {
            "kept": kept,
            "stuck": lambda _: SimpleNamespace(
                handle=lambda event: self.opened.wait(DEADLINE), close=print
            ),
            "broken": lambda _: SimpleNamespace(
                handle=raising(OSError("disk full")),
                close=raising(AssertionError("it is switched off")),
            ),
        }

    def handle(self, event):
        self.events.append(event)

    def close(self):
        self.closed += 1

    @property
    def names(self):
        return [event.name.removeprefix("plaunch.") for event in self.events]

    @property
    def end(self):
        """What was told of the end."""
        (end,) = self.metadata("launcher.finished")
        return end

    @property
    def outcome(self):
        return self.end["outcome"], self.end["exit_code"]

    def metadata(self, name):
        return [event.metadata for event in self.events if event.name == f"plaunch.{name}"]


@pytest.fixture
def kept():
    plugin = Kept()
    yield plugin
    plugin.opened.set()


def config(**changes):
    settings = {
        "min_nodes": 1,
        "max_nodes": 1,
        "nproc_per_node": 2,
        "max_restarts": 0,
        "event_log_handler": "kept",
        "shutdown_timeout": 10,
        **changes,
    }
    return LaunchConfig(**settings)


def launch(code, *plugins, **changes):
    return launch_agent(config(**changes), sys.executable, ["-c", code], plugins=plugins)


def check(kept):
    """What holds for every stream."""
    times = [event.monotonic for event in kept.events]
    assert times == sorted(times)
    for event in kept.events:
        assert {*event.metadata} == {*COMMON_KEYS, *SCHEMA[event.name].keys}
        assert event.version == 1
        assert Event.deserialize(event.serialize()) == event
    assert (kept.names[0], kept.names[-1]) == ("launcher.started", "launcher.finished")
    assert kept.closed == 1


def test_events_are_only_made_for_readers(monkeypatch, caplog):
    monkeypatch.setenv("PLAUNCH_PLUGINS", "no:events")
    caplog.set_level("WARNING", "plaunch")
    elastic_launch(LaunchConfig(1, 1, 1), "/bin/true")()
    extension = SimpleNamespace(start=print, handle=print, stop=print)
    plugin = plugin_of(plaunch_extensions=lambda: [extension])
    for settings in ({"event_log_handler": "console"}, {}):
        given = [] if settings else [plugin]
        with pytest.raises(PluginError, match="no plugin can create the events that are read"):
            elastic_launch(LaunchConfig(1, 1, 1, **settings), "/bin/true", plugins=given)()
    with caplog.at_level("INFO", "plaunch"):  # the log reads events, but needs none
        elastic_launch(LaunchConfig(1, 1, 1), "/bin/true")()
    assert "this launch took" not in caplog.text


def test_an_option_of_an_event_handler_is_checked_without_readers(caplog):
    caplog.set_level("WARNING", "plaunch")
    config = LaunchConfig(1, 1, 1, options={"event_conf": ["jsonl.path=events"]})
    with pytest.raises(UsageError, match=r"jsonl"):
        elastic_launch(config, "/bin/true")()


START = ["launcher.started", "rendezvous.begun", "rendezvous.completed"]
STARTED = ["worker.started", "worker.started", "workers.started", "state.changed"]


def test_success(kept):
    launch("pass", kept)
    assert kept.names == [
        *START,
        *STARTED,
        *["worker.exited", "worker.exited", "state.changed", "launcher.finished"],
    ]
    check(kept)
    assert (kept.outcome, kept.end["ranks"]) == (("succeeded", 0), "0-1")


def test_a_failure_and_a_restart(kept):
    code = (
        "import os, sys, time\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "    if os.environ['RANK'] == '1': sys.exit('it broke')\n"
        "    time.sleep(60)\n"
    )
    launch(code, kept, max_restarts=1)
    check(kept)
    round_0 = kept.names[len(START + STARTED) : kept.names.index("rendezvous.begun", 3)]
    round_0.remove("failure")  # in the middle of the stop or at its end, whatever comes first
    assert round_0 == [
        "worker.exited",
        "state.changed",
        "stop.step",
        "worker.exited",
        "stop.step",
    ]
    first, stopped, *_ = kept.metadata("worker.exited")
    assert (first["global_rank"], first["exit_code"], first["stopped"]) == (1, 1, False)
    assert (stopped["global_rank"], stopped["signal_name"], stopped["stopped"]) == (
        0,
        "SIGTERM",
        True,
    )
    (failure,) = kept.metadata("failure")
    assert (failure["is_first"], failure["last_lines"]) == (True, "it broke")
    (restart,) = kept.metadata("restart")
    assert (restart["cause"], restart["attempt"]) == ("failure", 1)
    assert "rank 1" in restart["reason"]
    end = kept.end
    assert end["outcome"] == "succeeded"
    assert end["seconds_lost"] > 0
    parts = ("waiting", "starting", "training", "stopping", "lost")
    assert sum(end[f"seconds_{part}"] for part in parts) == pytest.approx(end["seconds_total"])


def test_a_final_failure(kept):
    with pytest.raises(ChildFailedError):
        launch("raise SystemExit(7)", kept, nproc_per_node=1)
    check(kept)
    assert kept.names[-3:] == ["failure", "state.changed", "launcher.finished"]
    assert kept.outcome == ("failed", 7)
    assert kept.end["reason"].startswith("rank 0 on ")


def test_a_signal(kept):
    code = "import os, signal, time; os.kill(os.getppid(), signal.SIGTERM); time.sleep(60)"
    with pytest.raises(SignalException):
        launch(code, kept, nproc_per_node=1)
    check(kept)
    (received,) = kept.metadata("signal.received")
    assert (received["signal_name"], received["action"]) == ("SIGTERM", "stop")
    assert [step["step"] for step in kept.metadata("stop.step")] == ["signalled", "gone"]
    assert kept.outcome == ("signalled", 143)


def test_a_worker_that_has_to_be_killed(kept):
    code = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "os.kill(os.getppid(), signal.SIGTERM)\n"
        "time.sleep(60)\n"
    )
    with pytest.raises(SignalException):
        launch(code, kept, nproc_per_node=1, shutdown_timeout=0.2)
    steps = [(step["step"], step["signal_name"]) for step in kept.metadata("stop.step")]
    assert steps == [
        ("signalled", "SIGTERM"),
        ("waiting", "SIGTERM"),
        ("killed", "SIGKILL"),
        ("gone", "SIGTERM"),
    ]
    (exited,) = kept.metadata("worker.exited")
    assert exited["signal_name"] == "SIGKILL"


def test_a_rendezvous_that_fails(kept):
    alone = FakeRendezvous()
    alone.next_rendezvous = raising(RendezvousError("nobody came\nfor an hour"))
    nobody = plugin_of(plaunch_rendezvous_backends=lambda: {"nobody": lambda _: alone})
    with pytest.raises(RendezvousError):
        launch("", kept, nobody, rdzv_backend="nobody")
    assert kept.names == [*START[:2], "rendezvous.failed", "launcher.finished"]
    (failed,) = kept.metadata("rendezvous.failed")
    assert failed["reason"] == "nobody came"
    check(kept)


def test_an_error_before_there_is_an_agent(kept):
    with pytest.raises(UsageError):
        launch("", kept, rdzv_configs={"ranks": 1}, rdzv_backend="static")
    assert kept.names == ["launcher.started", "launcher.finished"]
    assert kept.outcome == ("error", 2)
    check(kept)


@pytest.mark.parametrize("level", ["ERROR", "CRITICAL"])
def test_no_log_level_drops_events(kept, level):
    logger = logging.getLogger("plaunch")
    before = logger.level
    logger.setLevel(level)
    try:
        launch("pass", kept)
    finally:
        logger.setLevel(before)
    assert kept.names[-1] == "launcher.finished"


# --- handlers -------------------------------------------------------------------------------------


def test_a_handler_that_never_returns_keeps_no_job(kept, caplog):
    began = time.monotonic()
    launch("pass", kept, event_log_handler="stuck,kept")
    assert time.monotonic() - began < DEADLINE / 2
    check(kept)
    who = "event handler 'stuck' (module tests.launch.test_event_stream)"
    assert f"{who} did not finish in time and is abandoned" in caplog.text


def test_a_launcher_whose_handler_never_returns_exits(tmp_path, script):
    """The same for a whole process, whose end must not wait for the thread either."""
    program = tmp_path / "launch.py"
    program.write_text(
        "import sys, threading\n"
        "from plaunch import hookimpl\n"
        "from plaunch.cli import main\n"
        "class Stuck:\n"
        "    @hookimpl\n"
        "    def plaunch_event_handlers(self): return {'stuck': lambda _: self}\n"
        "    def handle(self, event): threading.Event().wait()\n"
        "    def close(self): pass\n"
        "sys.exit(main(['--event-log-handler=stuck', sys.argv[1]], plugins=[Stuck()]))\n"
    )
    script.write_text("print('done')")
    done = run_python(str(program), str(script), timeout=DEADLINE)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert "is abandoned" in done.stderr


def test_a_blocked_console_does_not_hold_the_launcher(script):
    words = ["-m", "plaunch", "--event-log-handler=console", script]
    environ = {**os.environ, "LOGLEVEL": "CRITICAL"}
    with full_pipe() as writer:
        with running_python(*words, stderr=writer, env=environ) as process:
            assert process.wait(DEADLINE) == 0


def test_a_handler_that_raises_is_named_and_the_others_continue(kept, caplog):
    launch("pass", kept, event_log_handler="broken,kept")
    check(kept)
    who = "event handler 'broken' (module tests.launch.test_event_stream)"
    assert f"{who} failed with OSError: disk full; the event is lost" in caplog.text
    assert caplog.text.count("disk full") == 2  # at first, and at the end with how many were lost


def test_null_has_no_thread():
    seen = []

    def look():
        seen.extend(thread.name for thread in threading.enumerate())

    launch("", plugin_of(plaunch_workers_started=look), event_log_handler="null")
    assert "MainThread" in seen
    assert not [name for name in seen if name.startswith("plaunch-events")]


def threads_of_launcher():
    """In a forked worker: what it has of the launcher's threads, and whether events are written."""
    return [thread.name for thread in threading.enumerate()]


@pytest.mark.filterwarnings("error")
def test_workers_are_forked_without_threads_of_handlers(kept):
    """Python itself warns of a fork with other threads alive, from 3.12 on."""
    names = []

    def look():
        names.extend(thread.name for thread in threading.enumerate())

    plugins = [kept, plugin_of(plaunch_worker_env=look)]
    launched = elastic_launch(config(start_method="fork"), threads_of_launcher, plugins=plugins)
    assert launched() == {0: ["MainThread"], 1: ["MainThread"]}
    assert "MainThread" in names
    assert not [name for name in names if name.startswith("plaunch-events")]
    check(kept)


# --- choosing them --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "conf", [{"kept.colour": "blue"}, "kept.colour=blue", ["kept.colour=red", "kept.colour=blue"]]
)
def test_the_context_of_a_handler(kept, conf):
    settings = config(options={"event_conf": conf})
    launch_agent(settings, sys.executable, ["-c", ""], plugins=[kept])
    (context,) = kept.contexts
    assert context.options == {"colour": "blue"}
    assert (context.run_id, context.run_dir) == (settings.run_id, None)


def test_console_and_jsonl_at_once(tmp_path, script, capfd):
    logs = tmp_path / "logs"
    assert main([f"--log-dir={logs}", "--event-log-handler=console,jsonl", str(script)]) == 0
    (path,) = logs.glob("*/events/*.jsonl")
    assert path.parent.parent.joinpath("attempt_0").is_dir()
    told = [json.loads(line) for line in path.read_text().splitlines()]
    assert [event["name"] for event in told][-1] == "plaunch.launcher.finished"
    assert path.name.endswith(f"-{told[0]['metadata']['agent_pid']}.jsonl")
    assert " launcher.finished: succeeded, exit code 0" in capfd.readouterr().err


def test_options_on_the_command_line_and_in_the_variable(tmp_path, script, monkeypatch):
    monkeypatch.setenv("PET_EVENT_LOG_HANDLER", "jsonl")
    monkeypatch.setenv("PET_EVENT_CONF", f"jsonl.path={tmp_path}/a,jsonl.keep=1")
    run([str(script)])
    run(
        [f"--event-conf=jsonl.path={tmp_path}/b", "--event-conf", "jsonl.max_bytes=1M", str(script)]
    )
    assert (tmp_path / "a").exists()
    assert (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--event-log-handler=consol"], "did you mean 'console'?"),
        (["--event-log-handler=console,console"], "names 'console' twice"),
        (["--event-log-handler=,"], "write one name, or several separated by commas"),
        (["--event-conf=jsonl.path=x"], "--event-log-handler does not name 'jsonl'"),
        (
            ["--event-log-handler=jsonl", "--event-conf=jsnl.path=x"],
            "did you mean 'jsonl'? Choices: jsonl",
        ),
        (
            ["--event-log-handler=jsonl", "--event-conf=jsonl.pth=x"],
            "no option 'pth'; did you mean 'path'? Choices: keep, max_bytes, path",
        ),
        (["--event-conf=null.x=1"], "no option 'x'; no choices are available"),
        (["--event-conf=path"], "write HANDLER.KEY=VALUE"),
        (["--event-log-handler=jsonl"], "give --log-dir, or --event-conf jsonl.path=FILE"),
    ],
)
def test_what_is_refused(options, message, script, capsys):
    script.write_text("raise SystemExit('it ran')")
    assert main([*options, str(script)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--dry-run"], ["--doctor"]])
def test_a_dry_run_and_the_doctor_refuse_the_same(options, script, capsys):
    try:
        code = main([*options, "--event-conf=null.x=1", str(script)])
    except SystemExit as end:
        code = end.code
    assert code in (1, 2)
    out, err = capsys.readouterr()
    assert "no option 'x'" in out + err


# --- what looks at a launch that has failed -------------------------------------------------------


def _fail():
    raise RuntimeError("bad luck")


def test_what_goes_wrong_after_a_failure_is_one_line(tmp_path, monkeypatch, caplog):
    """The failure itself is what its caller gets."""
    monkeypatch.setattr(parts, "EVENT_STREAM", "no_such_module:events")
    specs = DefaultLogsSpecs(log_dir=str(tmp_path))
    config = LaunchConfig(1, 1, 1, max_restarts=0, start_method="fork", logs_specs=specs)
    with caplog.at_level(logging.WARNING, "plaunch"):
        with pytest.raises(ChildFailedError):
            elastic_launch(config, _fail)()
        for thread in threading.enumerate():
            if isinstance(thread, FinalWork):
                thread.join()
    (line,) = [record.message for record in caplog.records if "no_such" in record.message]
    assert "no_such_module, which comes with plaunch, is not installed" in line


# --- extensions that take events on request -------------------------------------------------------


class Polling:
    """Takes the events when it stops, or never."""

    takes_events = False

    def __init__(self, asks):
        self.asks = asks
        self.events = []
        self.was_made = False

    @hookimpl
    def plaunch_extensions(self, context):
        return [self]

    def start(self, control):
        self.control = control

    def handle(self, event):
        pytest.fail("it takes events only on request")

    def stop(self, result):
        self.was_made = "plaunch_events.stream" in sys.modules
        if self.asks:
            self.events = self.control.take_events()


@pytest.mark.parametrize(("program", "code"), [("/bin/true", 0), ("/bin/false", 1)])
def test_the_last_event_of_a_launch_is_included(program, code):
    asking = Polling(asks=True)
    config = LaunchConfig(1, 1, 1, max_restarts=0)
    try:
        elastic_launch(config, program, plugins=[asking])()
    except ChildFailedError:
        assert code
    names = [event.name.removeprefix("plaunch.") for event in asking.events]
    assert names[:2] == ["launcher.started", "rendezvous.begun"]
    assert asking.events[-1].metadata["exit_code"] == code


def test_no_events_are_made_without_a_reader(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "plaunch_events"]:
        monkeypatch.delitem(sys.modules, name)
    asking = Polling(asks=False)
    logging.getLogger("plaunch").setLevel(logging.WARNING)  # a log at INFO asks for them
    elastic_launch(LaunchConfig(1, 1, 1), "/bin/true", plugins=[asking])()
    assert not asking.was_made
