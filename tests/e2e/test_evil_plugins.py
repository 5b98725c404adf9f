"""Misbehaving plugins in real launches: `tests/data/evil_package`."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from helpers.pipes import full_pipe
from helpers.programs import end_launch
from helpers.waiting import wait_for_files

PACKAGE = Path(__file__).parents[1] / "data/evil_package"
RELEASE = "(distribution evil-plaunch 6.6, module evil_plaunch."
NPROC, LOGS = "--nproc-per-node", "--logs-specs"
OPTIONS = {NPROC: "device_counts", LOGS: "logs_specs"}
FORTY = 40.0  # seconds that a launch sleeps unless it is stopped


@pytest.fixture
def evil(plaunch):
    """A command line that loads only the named plugins of this package."""
    plaunch.environ["PYTHONPATH"] = str(PACKAGE)
    plaunch.environ["PLAUNCH_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    plaunch.environ["EVIL_STANDS"] = str(plaunch.folder / "stands")
    return plaunch


STANDING = {
    "stands-before-rendezvous": "plaunch_before_rendezvous",
    "stands-when-started": "plaunch_workers_started",
    "stands-at-the-end": "plaunch_agent_finished",
}


@pytest.mark.parametrize("plugin", STANDING)
def test_a_hook_that_never_returns_does_not_block_the_job(evil, plugin):
    done = evil.run("-p", plugin, "--no-python", "sh", "-c", "exit 3")
    assert done.returncode == 3
    hook = STANDING[plugin]
    assert (
        f"plugin {plugin!r} {RELEASE}hooks) has not returned from {hook} within 1 s" in done.stderr
    )


@pytest.fixture
def stop(evil):
    """Stop a launch once a plugin hangs or its worker is ready; return its output and duration."""

    def stop(*argv, signum=signal.SIGTERM):
        with evil.start(*argv) as launch:
            if READY in argv:
                assert launch.stdout.readline() == "ready\n"
            else:
                wait_for_files(evil.folder / "stands")
            launch.send_signal(signum)
            began = time.monotonic()
            _, err = launch.communicate(timeout=FORTY)
        assert launch.returncode == 128 + signum
        return err, time.monotonic() - began

    return stop


READY = f"echo ready; exec sleep {FORTY}"
STAY = ["--no-python", "sh", "-c", READY]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGQUIT"])
@pytest.mark.parametrize("plugin", ["stands-when-started", "stands-in-worker-env"])
def test_signals_are_handled_while_a_hook_hangs(stop, plugin, name):
    argv = ["-p", plugin, "--no-python", "sleep", str(FORTY)]
    err, seconds = stop(*argv, signum=signal.Signals[name])
    assert seconds < 9  # plaunch waits ten seconds for a hook with a result
    assert f"plugin {plugin!r} {RELEASE}hooks) ha" in err


ENDED = {
    "a hook that stands in a restart": (
        ["-p", "stands-in-a-restart", "--max-restarts=3", "--no-python", "sh", "-c", "exit 3"],
        f"plugin 'stands-in-a-restart' {RELEASE}hooks) had not returned from plaunch_w",
    ),
    "a signal policy that stands": (
        ["-p", "signal_policies:stands", "--signal-policy=stands", *STAY],
        f"signal policy 'stands' {RELEASE}components) has not returned within 1 s from action for",
    ),
    "a signal policy that calls sys.exit": (
        ["-p", "signal_policies:leaves", "--signal-policy=leaves", *STAY],
        f"signal policy 'leaves' {RELEASE}components) failed in action: SystemExit: 0",
    ),
}


@pytest.mark.parametrize("name", ENDED)
def test_a_signal_stays_the_cause_of_the_end(stop, name):
    argv, said = ENDED[name]
    err, _ = stop(*argv)
    assert said in err
    assert "cannot be started again" not in err


STANDING_LOGS = ["-p", "logs_specs:stands", "--logs-specs=stands", *STAY]
HANGS = {
    "reify": STANDING_LOGS,
    "open_streams": STANDING_LOGS,
    "open_sink": STANDING_LOGS,
    "environment": ["-p", "stands-in-a-binder", *STAY],
    "opening the workers' store": ["-p", "stands-in-a-store", *STAY],
}


@pytest.mark.parametrize("place", HANGS)
def test_a_component_that_never_returns_does_not_delay_a_stop(evil, place):
    evil.environ["EVIL_PLACE"] = place
    evil.environ.pop("USE_LIBUV", None)  # the worker of rank 0 would host the store
    with evil.start(*HANGS[place]) as launch:
        wait_for_files(evil.folder / "stands")
        launch.send_signal(signal.SIGTERM)
        began = time.monotonic()
        out, err = launch.communicate(timeout=FORTY)
    assert (launch.returncode, out) == (128 + signal.SIGTERM, "")
    assert time.monotonic() - began < 9
    assert f"{RELEASE}" in err
    assert f") had not returned from {place} when the launch had to stop" in err


LEFT = {
    "leaves-a-thread": "thread 'uploader'",
    "hangs-at-exit": "a function at exit",
    "leaves-a-child": "process 'helper' (pid ",
}


@pytest.mark.parametrize("plugin", LEFT)
def test_leftovers_of_a_plugin_do_not_block_the_launcher(evil, plugin):
    script = evil.write("say.py", "print('said'); raise SystemExit(3)")
    with evil.start("-p", plugin, script, EVIL_ENDS=str(evil.folder / "end")) as launch:
        try:
            assert launch.wait(FORTY) == 3
        finally:
            (evil.folder / "end").touch()  # the remaining process ends and closes the pipes
        out, err = launch.communicate(timeout=FORTY)
    assert out == "said\n"
    _, _, named = err.partition("the launch has ended; plaunch does not wait any longer for: ")
    assert LEFT[plugin] in named


def test_a_thread_pool_ends_cleanly(evil):
    done = evil.run("-p", "leaves-a-pool", "--no-python", "true")
    assert (done.returncode, done.stderr) == (0, "")


CHANGED = {
    "at import": (["-p", "ignores-children"], "SIGCHLD does (while it was loaded)"),
    "in a hook": (["-p", "ignores-children-in-a-hook"], "SIGCHLD does (plaunch_workers_started)"),
}


@pytest.mark.parametrize(("argv", "what"), CHANGED.values(), ids=CHANGED)
def test_sigchld_is_restored(evil, argv, what):
    done = evil.run(*argv, "--no-python", "sleep", "0.2")
    assert done.returncode == 0, done.stderr
    assert f"{RELEASE}" in done.stderr
    assert f"has changed what {what}; plaunch has undone this" in done.stderr


def test_a_factory_cannot_change_signals(evil):
    """It runs on its own thread; Python allows this on the main thread only."""
    name = "ignores-children"
    done = evil.run(
        "-p", f"device_counts:{name}", f"--nproc-per-node={name}", "--no-python", "true"
    )
    assert done.returncode == 110
    assert f"device counter {name!r} (--nproc-per-node) of distribution evil" in done.stderr
    assert "failed in count_ignoring_children: ValueError: signal only works in" in done.stderr


QUESTIONS = {
    "plan": ["--dry-run=json", "--no-python", "true"],
    "list": ["--list-plugins"],
    "doctor": ["--doctor"],
    "check": ["-p", "device_counts:two", "--check-plugin=two"],
    "completion": ["--print-completion=bash"],
}


@pytest.mark.parametrize("argv", QUESTIONS.values(), ids=QUESTIONS)
def test_output_of_plugins_does_not_mix_with_requested_output(evil, argv):
    done = evil.run("-p", "prints", *argv, EVIL_WRITES="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert "evil: " not in done.stdout
    if "--print-completion=bash" not in argv:  # no plugin is loaded for it
        for way in ("print", "write", "echo"):
            assert f"evil: {way} at import" in done.stderr
    if "--dry-run=json" in argv:
        assert json.loads(done.stdout)["workers"][0]["environment"]["EVIL"] == "1"


@pytest.mark.parametrize("argv", [[], ["--run-path", "--start-method=fork"]], ids=repr)
def test_output_of_plugins_in_a_launch_goes_to_stderr(evil, argv):
    script = evil.write("say.py", "print('said', flush=True)\n")
    done = evil.run("-p", "prints", *argv, script)
    assert (done.returncode, done.stdout) == (0, "said\n")
    for where in ("at import", "in worker_env", "in workers_started", "at exit"):
        assert f"evil: print {where}\n" in done.stderr


def test_output_of_a_plugin_to_a_blocked_stderr_does_not_block_the_launcher(evil):
    """The hook's thread never releases the lock of the stream."""
    evil.environ.pop("PYTHONUNBUFFERED", None)
    argv = ["-p", "prints-when-started", "--no-python", "sh", "-c", "exit 3"]
    with full_pipe() as writer:
        launch = evil.popen(*argv, stdout=subprocess.DEVNULL, stderr=writer)
        try:
            assert launch.wait(FORTY) == 3
        finally:
            end_launch(launch)


@pytest.mark.parametrize(
    ("plugin", "option", "code", "said"),
    [
        ("slow-import", "", 0, f"plugin {{}} {RELEASE}slow_import) took 1."),
        ("fails-when-started", "", 0, f"plugin {{}} {RELEASE}hooks) failed in plaunch_w"),
        ("fails-in-worker-env", "", 110, f"plugin {{}} {RELEASE}hooks) failed in pla"),
        ("fails", LOGS, 110, f"logs spec {{}} {RELEASE}components) failed in reify: ValueError"),
        ("leaves-a-message", NPROC, 110, "SystemExit: the driver is broken"),
    ],
)
def test_a_problem_is_explained_with_distribution_and_version(evil, plugin, option, code, said):
    argv = ["-p", f"{OPTIONS[option]}:{plugin}", f"{option}={plugin}"] if option else ["-p", plugin]
    done = evil.run(*argv, "--no-python", "sleep", "0.2")
    assert done.returncode == code
    assert said.format(repr(plugin)) in done.stderr
    assert "internal error" not in done.stderr


def test_a_handler_that_loses_one_event_gets_the_others(evil):
    events = evil.folder / "events"
    script = evil.write(
        "wait.py", f"import os, time\nwhile not os.path.exists({str(events)!r}): time.sleep(0.05)\n"
    )
    argv = ["-p", "event_handlers:away-once", "--event-log-handler=away-once", script]
    done = evil.run(*argv, EVIL_EVENTS=str(events))
    assert done.returncode == 0
    who = f"event handler 'away-once' {RELEASE}components)"
    assert f"{who} failed with ConnectionError: no route to host; the event is lost" in done.stderr
    assert f"{who} works again after " in done.stderr
    assert f"{who} failed on 1 event(s) in all" in done.stderr
    assert done.stdout == ""  # it prints, too
    seen = events.read_text().splitlines()
    assert seen[0] == "plaunch.rendezvous.begun"
    assert seen[-1] == "plaunch.launcher.finished"


LEAVES = {
    "device count": (["device_counts", "leaves", "--nproc-per-node"], "device counter", 110),
    "scheduler": (["schedulers", "leaves", "--scheduler"], "scheduler", 110),
    "policy": (["signal_policies", "leaves-when-made", "--signal-policy"], "signal policy", 110),
    "event handler": (["event_handlers", "leaves", "--event-log-handler"], "event handler", 110),
    "backend": (["rendezvous", "leaves-when-made", "--rdzv-backend"], "rendezvous backend", 110),
    "logs": (["logs_specs", "leaves", "--logs-specs"], "logs spec", 110),
    "next_rendezvous": (["rendezvous", "leaves", "--rdzv-backend"], "rendezvous backend", 110),
    "num_nodes_waiting": (["rendezvous", "leaves", "--rdzv-backend"], "rendezvous backend", 110),
    # The worker's exit code is not lost.
    "shutdown": (["rendezvous", "leaves", "--rdzv-backend"], "rendezvous", 7),
}


@pytest.mark.parametrize("place", LEAVES)
def test_sys_exit_in_a_plugin_is_a_failure_and_not_the_end(evil, place):
    (kind, name, option), who, code = LEAVES[place]
    done = evil.run(
        *["-p", f"{kind}:{name}", f"{option}={name}"],
        *["--monitor-interval=0.05", "--no-python", "sh", "-c", "sleep 0.5; exit 7"],
        EVIL_PLACE=place,
    )
    assert done.returncode == code
    assert who in done.stderr
    assert "SystemExit: 0" in done.stderr
    assert code == 7 or "distribution evil-plaunch 6.6, module evil_plaunch.components" in (
        done.stderr
    )


CLOSED = ["-p", "logs_specs:fails-to-close", "--logs-specs=fails-to-close", "--no-python", "sh"]
NOT_CLOSED = (
    f"the logs spec could not clean up: logs spec 'fails-to-close' {RELEASE}components) failed in "
    "close: ValueError: no such folder\n"
)


@pytest.mark.parametrize("code", [0, 7])
def test_a_logs_spec_that_fails_in_close_does_not_change_the_result(evil, code):
    done = evil.run(*CLOSED, "-c", f"echo some words >&2; exit {code}")
    assert done.returncode == code
    assert NOT_CLOSED in done.stderr
    assert ("exit code 7" in done.stderr) == (code == 7)
    assert done.stderr.count("evil: close") == 1


def test_a_logs_spec_that_fails_in_close_does_not_undo_a_signal(stop):
    err, _ = stop(*CLOSED, "-c", READY)
    assert NOT_CLOSED in err
    assert err.count("evil: close") == 1


NOTHING = {
    "device_counts": "--nproc-per-node",
    "schedulers": "--scheduler",
    "signal_policies": "--signal-policy",
    "restart_policies": "--restart-policy",
    "health_checks": "--health-check",
    "event_handlers": "--event-log-handler",
    "rendezvous": "--rdzv-backend",
}


@pytest.mark.parametrize("kind", NOTHING)
def test_an_invalid_component_is_a_plugin_error(evil, kind):
    done = evil.run("-p", f"{kind}:nothing", f"{NOTHING[kind]}=nothing", "--no-python", "true")
    assert done.returncode == 110
    assert f" 'nothing' ({NOTHING[kind]}) of distribution evil-plaunch 6.6, module" in done.stderr
    assert "failed in return_nothing: TypeError: it returned None, which " in done.stderr
    assert "internal error" not in done.stderr
