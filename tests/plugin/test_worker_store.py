"""Which plugin hosts the store of the workers."""

from __future__ import annotations

import re
import socket
import sys

import pytest
from plaunch import LaunchConfig, elastic_launch, parts
from plaunch.agent.worker_store import open_default_store
from plaunch.errors import PluginError, PluginLoadError, WorkerStoreError
from plaunch.plugin import find_worker_store
from plaunch.process import ChildFailedError
from plaunch.testing import plugin_manager

from helpers.hooks import NO_OTHERS, context_of, plugin_of
from helpers.programs import run_python

WHO = "plugin 'A' (module helpers.hooks)"
# Notes what the store says to those who connect.
ASKING = """\
import os, socket
where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
with socket.create_connection(where, 30) as store:
    said = store.makefile().read()
print(os.environ["TORCHELASTIC_USE_AGENT_STORE"], said, file=open("said", "w"))
"""
TELLING = """\
import os, socket, sys
with socket.socket(fileno=int(sys.argv[1])).accept()[0] as client:
    jobs, token = os.environ["PLAUNCH_JOBS"], os.environ.get("PLAUNCH_ACME_TOKEN")
    client.sendall(f"{jobs.rpartition('.')[2]} {token}".encode())
"""


class Store:
    """A store of a third party: a process that greets each client."""

    def __init__(self, store_round, calls, lost=None):
        self.round, self.calls, self.lost = store_round, calls, lost
        self.listener = socket.create_server((store_round.address, store_round.port))
        self.process = None
        calls.append(f"opened for {store_round.nodes} with {store_round.entrypoint}")

    def watch(self, workers):
        fd = self.listener.fileno()
        command = [sys.executable, "-c", TELLING, str(fd)]
        self.process = self.round.start(command, self.round.environ, pass_fds=(fd,))
        self.calls.append(f"{len(workers)} workers")

    def wait_for_guests(self, patience):
        pass

    def fds(self):
        return []

    def due(self):
        return None

    def tend(self):
        lost, self.lost = self.lost, None
        return lost

    def close(self):
        self.listener.close()
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.calls.append("closed")


def plugin(name, answer):
    """A plugin called `name` that whose answer is what a function makes of the context."""
    return plugin_of(name, plaunch_worker_store=answer)


def store_of(*plugins, words=(), **settings):
    return find_worker_store(plugin_manager(*plugins, words=words), context_of(**settings))


def test_plaunchs_own_store_is_not_loaded_before_it_is_opened():
    plugins = plugin_manager(plugin("A", lambda context: None), words=NO_OTHERS)
    assert find_worker_store(plugins, context_of(worker_store="agent")) is open_default_store
    assert [loaded.name for loaded in plugins.selected()] == ["A"]


def test_there_is_no_store_if_a_worker_hosts_it_or_it_is_blocked():
    def refuse(context):
        raise AssertionError("it is asked")

    assert store_of(plugin("A", refuse), worker_store="rank0") is None
    assert store_of(words=["no:worker_store"]) is None


@pytest.mark.parametrize(("value", "is_found"), [("agent", True), ("rank0", False)])
def test_plaunchs_own_answers_for_its_option(value, is_found):
    plugins = plugin_manager()
    plugins.use_options({"worker_store": value}, {})
    assert (find_worker_store(plugins, context_of()) is not None) is is_found


def test_two_answers_are_an_error_that_names_both():
    offering = lambda context: open_default_store  # noqa: E731
    with pytest.raises(PluginError) as caught:
        store_of(plugin("A", offering), plugin("B", offering))
    assert str(caught.value) == (
        f"{WHO} and {WHO.replace('A', 'B')} both host the workers' store (plaunch_worker_store); "
        "block one of them with -p no:A or -p no:B"
    )


def test_a_plugin_that_answers_with_something_else_is_named():
    said = "returned 7 from plaunch_worker_store, which is not a function that opens a store"
    with pytest.raises(PluginError, match=rf"{re.escape(WHO)} {said}"):
        store_of(plugin("A", lambda context: 7))


def test_a_third_partys_store_in_a_launch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLAUNCH_ACME_TOKEN", "secret")
    calls = []
    offered = plugin("A", lambda context: lambda store_round: Store(store_round, calls))
    elastic_launch(LaunchConfig(1, 1, 1), sys.executable, plugins=[offered])("-c", ASKING)
    assert (tmp_path / "said").read_text() == "True helper None\n"
    assert calls[:2] == [f"opened for 1 with {sys.executable}", "1 workers"]
    assert set(calls[2:]) == {"closed"}


def test_a_store_that_is_lost_is_a_failure_of_the_round():
    lost = WorkerStoreError("it was lost")
    offered = plugin("A", lambda context: lambda store_round: Store(store_round, [], lost))
    launch = elastic_launch(LaunchConfig(1, 1, 1, max_restarts=0), "sleep", plugins=[offered])
    with pytest.raises(ChildFailedError, match="it was lost"):
        launch("60")


def test_without_any_the_worker_of_rank_0_hosts_it():
    code = "import os; print(os.environ['TORCHELASTIC_USE_AGENT_STORE'])"
    launch = ("-m", "plaunch", "-p", "no:worker_store", "--no-python")
    assert run_python(*launch, sys.executable, "-c", code, check=True).stdout == "False\n"


def test_a_missing_package_is_an_error_when_the_store_is_opened(monkeypatch):
    monkeypatch.setattr(parts, "OPEN_WORKER_STORE", "plaunch_gone:open_store")
    with pytest.raises(PluginLoadError, match="plaunch_gone, which comes with plaunch, is not"):
        open_default_store(None)
