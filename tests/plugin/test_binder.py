"""Which plugin gives workers their devices and processors."""

from __future__ import annotations

import contextlib
import re
import sys

import pytest
from plaunch import LaunchConfig, elastic_launch, parts
from plaunch.errors import PluginError, PluginLoadError, UsageError
from plaunch.plugin import CallLimits, find_binder
from plaunch.process.components import default_binder
from plaunch.testing import plugin_manager

from helpers.faults import raising
from helpers.hooks import NO_OTHERS, context_of, plugin_of
from helpers.waiting import BOUND

WHO = "plugin 'A' (module helpers.hooks)"


class Shelf:
    """A binding of a third party; records its calls."""

    def __init__(self, number, calls):
        self.number, self.calls = number, calls

    @contextlib.contextmanager
    def applied(self):
        self.calls.append(f"starts {self.number}")
        yield
        self.calls.append(f"has started {self.number}")

    def bind(self, pid):
        self.calls.append(f"bound {pid}")

    def describe(self):
        return {"shelf": str(self.number)}


class Shelves:
    """A binder of a third party."""

    def __init__(self, calls=None):
        self.calls = [] if calls is None else calls

    def plan(self, nprocs):
        return {rank: Shelf(rank, self.calls) for rank in range(nprocs)}

    def environment(self, local_rank, environ):
        return {"SHELF": str(local_rank), "RANK_THERE": environ["RANK"]}


def plugin(name, answer):
    """A plugin called `name` that answers so, or with what a function makes of the context."""
    return plugin_of(
        name,
        plaunch_worker_binder=lambda context: answer(context) if callable(answer) else answer,
    )


def binder_of(*plugins, **settings):
    return find_binder(plugin_manager(*plugins), context_of(**settings))


def test_without_a_plugin_and_a_setting_nothing_is_bound_or_loaded():
    plugins = plugin_manager(plugin("A", None), words=NO_OTHERS)
    settings = {"numa_options": None, "devices": None, "virtual_local_rank": False}
    assert find_binder(plugins, context_of(**settings)) is None
    assert [loaded.name for loaded in plugins.selected()] == ["A"]


@pytest.mark.parametrize(
    "settings", [{"numa_options": "node"}, {"devices": ["0"]}, {"virtual_local_rank": True}]
)
def test_plaunchs_own_answers_for_the_settings(settings):
    plugins = plugin_manager(plugin("A", None), words=NO_OTHERS)
    for _ in range(2):
        assert find_binder(plugins, context_of(**settings)) is not None
    assert [loaded.name for loaded in plugins.selected()] == ["A", "devices"]


def test_two_answers_are_an_error_that_names_both():
    with pytest.raises(PluginError) as caught:
        binder_of(plugin("A", Shelves()), plugin("B", Shelves()))
    assert str(caught.value) == (
        f"{WHO} and {WHO.replace('A', 'B')} both bind the workers (plaunch_worker_binder); block "
        "one of them with -p no:A or -p no:B"
    )
    with pytest.raises(
        PluginError, match=r"plugin 'A' .* and the assignment of devices both .* -p no:devices"
    ):
        binder_of(plugin("A", Shelves()), devices=["0"])


def test_settings_that_are_refused_are_the_users_fault():
    with pytest.raises(UsageError, match="affinity mode 'nodes' is unknown"):
        binder_of(numa_options="nodes")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (raising(OSError("no shelf")), "failed in plaunch_worker_binder: OSError: no shelf"),
        (lambda context: 7, "returned 7 from plaunch_worker_binder, which is not a Binder"),
    ],
)
def test_a_plugin_that_gives_none_is_named(answer, said):
    with pytest.raises(PluginError, match=rf"{re.escape(WHO)} {said}"):
        binder_of(plugin("A", answer))


def test_a_plugin_that_does_not_return_is_named(gate):
    slow = plugin("A", lambda context: gate.wait(BOUND))
    manager = plugin_manager(slow, limits=CallLimits(hook=0.01))
    with pytest.raises(PluginError, match=r"'A' .* not returned from plaunch_worker_binder wi"):
        find_binder(manager, context_of())


def test_a_third_partys_binder_in_a_launch(tmp_path):
    calls = []
    config = LaunchConfig(1, 1, 2)
    code = "import os, sys; open(sys.argv[1], 'w').write(os.environ['SHELF'])"
    launch = elastic_launch(config, sys.executable, plugins=[plugin("A", Shelves(calls))])
    launch("-c", code, str(tmp_path / "rank${local_rank}"))
    assert [(tmp_path / f"rank{rank}").read_text() for rank in range(2)] == ["0", "1"]
    assert calls == ["starts 0", "has started 0", "starts 1", "has started 1"]


def test_without_plaunchs_plugin_the_settings_are_refused(monkeypatch):
    with pytest.raises(UsageError, match=r"no plugin assigns devices to workers; do not block 'd"):
        find_binder(plugin_manager(words=["no:devices"]), context_of(devices=["0"]))
    monkeypatch.setattr(parts, "BINDER", "plaunch_gone:create_binder")
    with pytest.raises(PluginLoadError, match="plaunch_gone, which comes with plaunch, is not"):
        default_binder("node")
