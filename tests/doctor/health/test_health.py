"""The health checks of a launch: creation, runs and failures."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from plaunch import LaunchConfig, hookimpl
from plaunch.doctor import Finding, Status
from plaunch.errors import PluginError, ThreadStartError, UsageError
from plaunch.plugin import PluginContext
from plaunch.testing import plugin_manager
from plaunch_doctor.health import TIMEOUT, TIMEOUT_VARIABLE, LaunchHealthChecks

from helpers.faults import raising
from helpers.programs import run_python
from helpers.waiting import wait_until

WELL = Finding(Status.OK, "nose", "it is cold")
ILL = Finding(Status.PROBLEM, "nose", "it is\nwarm", "see a vet")
ODD = Finding(Status.WARNING, "tail", "it hangs")


def context(*names):
    config = LaunchConfig(1, 1, 2, run_id="job", health_checks=list(names))
    return PluginContext("job", "default", "node0", "/logs", config.settings())


def offering(**factories):
    """A plugin that provides health checks."""

    class Plugin:
        @hookimpl
        def plaunch_node_health(self):
            return factories

    return Plugin()


def making(check, **more):
    return lambda context: SimpleNamespace(check=check, **more)


def chosen(*names, environ=(), **factories):
    manager = plugin_manager(offering(**factories))
    return LaunchHealthChecks(manager, context(*(names or factories)), dict(environ))


def verdict_of(checks, *, is_restart=False):
    woken = threading.Event()
    checks.begin(woken.set, is_restart=is_restart)
    while (remaining := checks.remaining()) > 0:  # as the agent does
        woken.wait(remaining)
        woken.clear()
    return checks.verdict()


# --- names and arguments --------------------------------------------------------------------------


def with_argument(seen):
    def create(context):
        seen.append(dict(context.options))
        return SimpleNamespace(check=lambda occasion: [])

    create.takes_argument = True
    return create


@pytest.mark.parametrize(
    ("given", "options"),
    [("dog", {}), ("dog:", {"argument": ""}), ("dog:a:b c", {"argument": "a:b c"})],
)
def test_the_text_after_the_name_is_its_argument(given, options):
    seen = []
    chosen(given, dog=with_argument(seen))
    assert seen == [options]


def test_a_name_may_have_its_distribution_and_an_argument(site):
    source = "def create(context):\n    raise ValueError(context.options)\n"
    source += "create.takes_argument = True\n"
    site.install("acme", {"plaunch.health_checks": {"disk": "acme_dogs:create"}}, acme_dogs=source)
    with pytest.raises(
        PluginError, match=r"of distribution acme .* failed in create: .*'argument': 'a:b'"
    ):
        LaunchHealthChecks(site.manager(), context("acme:disk:a:b"))
    with pytest.raises(UsageError, match="acme:disk"):
        LaunchHealthChecks(site.manager(), context("disk"))


def test_a_repeated_name_creates_one_check():
    seen = []
    chosen("dog", "dog", "dog:1", dog=with_argument(seen))
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("cat", "health check 'cat' is unknown .*Choices: command, disk, dog, gpu"),
        ("dg", "did you mean 'dog'"),
        ("cat:dog:1", "cat:dog"),
        ("acme:cat", "'acme' is unknown"),
        ("dog:1", "'dog' takes no argument, but 'dog:1' gives it '1'"),
    ],
)
def test_invalid_names_and_arguments_are_refused(given, said):
    with pytest.raises(UsageError, match=said):
        chosen(given, dog=making(list))


@pytest.mark.parametrize("given", [[3], "disk"])
def test_the_setting_must_be_a_list_of_names(given):
    config = LaunchConfig(1, 1, 2, run_id="job", health_checks=given)
    settings = PluginContext("job", "default", "node0", "/logs", config.settings())
    with pytest.raises(UsageError, match="give a list of names"):
        LaunchHealthChecks(plugin_manager(), settings, {})


def test_an_object_that_is_not_a_check_is_a_plugin_error():
    with pytest.raises(PluginError, match=r"'dog' .*it returned None, which has no method 'check'"):
        chosen(dog=lambda context: None)


@pytest.mark.parametrize("text", ["0", "inf", "-1", "soon"])
def test_the_time_of_a_check_is_a_number_of_seconds(text):
    with pytest.raises(UsageError, match=f"variable {TIMEOUT_VARIABLE} is"):
        chosen(dog=making(list), environ={TIMEOUT_VARIABLE: text})
    assert chosen(dog=making(list), environ={TIMEOUT_VARIABLE: "2.5"}).timeout == 2.5
    assert chosen(dog=making(list)).timeout == TIMEOUT


# --- answers --------------------------------------------------------------------------------------


def test_a_problem_excludes_the_node_and_warnings_are_logged(caplog):
    caplog.set_level("INFO", "plaunch")
    checks = chosen(one=making(lambda _: [WELL, ODD]), two=making(lambda _: iter([ILL, WELL])))
    text = verdict_of(checks)
    assert text == "node node0 is not healthy: nose: it is warm (--health-check=two); see a vet"
    assert [record.getMessage() for record in caplog.records] == [
        "tail: it hangs (--health-check=one)"
    ]


def test_a_healthy_node_is_logged(caplog):
    caplog.set_level("INFO", "plaunch")
    assert verdict_of(chosen(one=making(lambda _: [WELL]))) == ""
    assert caplog.messages == ["node node0 is healthy: nose: it is cold"]


def test_a_check_gets_the_occasion():
    occasions = []
    checks = chosen(one=making(lambda occasion: occasions.append(occasion) or []))
    for is_restart in (False, True, True):
        verdict_of(checks, is_restart=is_restart)
    assert [one.is_restart for one in occasions] == [False, True, True]
    assert {one.timeout for one in occasions} == {TIMEOUT}


@pytest.mark.parametrize(
    ("check", "said"),
    [
        (raising(ValueError("no nose")), "failed: ValueError: no nose"),
        (raising(SystemExit(0)), "failed: SystemExit: 0"),
        (raising(KeyboardInterrupt()), "failed: KeyboardInterrupt"),
        (lambda occasion: None, "failed: TypeError: 'NoneType' object is not iterable"),
        (lambda occasion: ["fine"], "returned 'fine', which is not a Finding"),
        (lambda occasion: [Finding("ok", "nose", "")], "which is not a Finding"),
    ],
)
def test_a_broken_check_is_named_and_excludes_the_node(check, said):
    text = verdict_of(chosen(one=making(check)))
    assert "node node0 is not healthy: the health check 'one' (" in text
    assert said in text
    assert text.endswith("(--health-check=one)")


def test_all_checks_run_at_the_same_time():
    barrier = threading.Barrier(3)
    factories = {name: making(lambda _: [barrier.wait(30)] and []) for name in ("a", "b", "c")}
    assert verdict_of(chosen(**factories)) == ""


def test_a_hanging_check_is_named_and_not_started_again(gate):
    asked = []

    def check(occasion):
        asked.append(occasion)
        gate.wait(60)
        return []

    checks = chosen(
        slow=making(check), quick=making(lambda _: []), environ={TIMEOUT_VARIABLE: "0.05"}
    )
    text = verdict_of(checks)
    assert "the health check 'slow' (" in text
    assert "did not return within 0.05 s (--health-check=slow)" in text
    assert "quick" not in text
    assert "has still not returned from its previous run" in verdict_of(checks)
    assert len(asked) == 1
    gate.set()
    wait_until(lambda: not any("health-check" in t.name for t in threading.enumerate()), "its end")
    assert verdict_of(checks) == ""
    assert len(asked) == 2


def test_a_node_without_threads_is_not_healthy(monkeypatch):
    checks = chosen(one=making(lambda _: []))
    monkeypatch.setattr(
        "plaunch_doctor.health.BoundedCall", raising(ThreadStartError("no more threads"))
    )
    assert "was not started: no more threads" in verdict_of(checks)


def test_no_thread_is_left_when_workers_may_be_forked():
    before = set(threading.enumerate())
    verdict_of(chosen(one=making(lambda _: [])))
    assert set(threading.enumerate()) <= before


# --- the end --------------------------------------------------------------------------------------


def test_each_check_is_closed_even_if_another_fails(caplog):
    closed = []
    chosen(
        one=making(list, close=raising(ValueError("it bites"))),
        two=making(list),
        three=making(list, close=lambda: closed.append(3)),
    ).close()
    assert closed == [3]
    assert "failed in close: ValueError: it bites" in caplog.text


LAUNCH = """
import sys
from plaunch.cli import main
code = main([*{words!r}, "--no-python", "true"])
print(code, *sorted(m for m in sys.modules if m.startswith("plaunch_doctor.")))
"""


def test_a_launch_without_checks_imports_none() -> None:
    done = run_python("-c", LAUNCH.format(words=[]), check=True)
    assert done.stdout.split() == ["0", "plaunch_doctor.options"]
    done = run_python("-c", LAUNCH.format(words=["--health-check=memory:1k"]), check=True)
    assert "plaunch_doctor.memory" in done.stdout.split()
    assert "plaunch_doctor.gpu" not in done.stdout.split()
