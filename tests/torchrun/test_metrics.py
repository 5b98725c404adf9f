"""Numbers about a launch, and who takes them."""

from __future__ import annotations

import logging

import pytest
from plaunch import metrics as core
from plaunch.agent import notifications
from plaunch.agent.measures import MetricRecorder
from plaunch.agent.worker import RunResult, WorkerState
from plaunch_torchrun.elastic import metrics

from helpers.groups import make_group


class Kept(metrics.MetricHandler):
    def __init__(self):
        self.all = []

    def emit(self, metric_data):
        self.all.append(metric_data)

    def values(self):
        return {data.name: data.value for data in self.all}


@pytest.fixture(autouse=True)
def handlers(monkeypatch):
    monkeypatch.setattr(core, "_HANDLERS", core._Handlers())


def test_by_default_nobody_takes_them():
    assert isinstance(metrics.getStream("any").handler, metrics.NullMetricHandler)
    metrics.put_metric("name", 1)


def test_a_group_with_a_handler_of_its_own():
    kept, other = Kept(), Kept()
    metrics.configure(other)
    metrics.configure(kept, "mine")
    metrics.put_metric("name", 3, "mine")
    metrics.put_metric("name", 4)
    (data,) = kept.all
    assert data[1:] == ("mine", "name", 3)
    assert data.timestamp > 0
    assert other.all[0].group_name == "torchelastic"
    assert metrics.getStream("mine").handler is kept


def test_the_console(capsys):
    metrics.ConsoleMetricHandler().emit(metrics.MetricData(1.5, "group", "name", 2))
    assert capsys.readouterr().out == "[1.5][group]: name=2\n"


def test_a_handler_that_fails_harms_nobody_and_is_reported_once(caplog):
    class Broken(metrics.MetricHandler):
        def emit(self, metric_data):
            raise OSError("no disk")

    metrics.configure(Broken())
    with caplog.at_level(logging.WARNING, "plaunch"):
        metrics.put_metric("name", 1)
        metrics.put_metric("name", 1)
    (record,) = caplog.records
    assert "no disk" in record.getMessage()


def test_prof_of_a_method():
    kept = Kept()
    metrics.configure(kept)

    class Agent:
        @metrics.prof
        def act(self, value):
            return value + 1

    assert Agent().act(1) == 2
    name = Agent.act.__qualname__
    assert kept.values() == {f"{name}.success": 1, f"{name}.duration.ms": pytest.approx(0, abs=999)}


def fail():
    raise ValueError("no")


def test_prof_of_a_function_that_fails():
    kept = Kept()
    metrics.configure(kept, "mine")
    with pytest.raises(ValueError, match="no"):
        metrics.prof(group="mine")(fail)()
    assert set(kept.values()) == {"test_metrics.fail.failure", "test_metrics.fail.duration.ms"}


def test_names_that_are_deprecated():
    kept = Kept()
    metrics.configure(kept)
    with pytest.warns(FutureWarning, match="put_metric"):
        metrics.publish_metric("group", "name", 5)
    with pytest.warns(FutureWarning, match="prof"):
        decorate = metrics.profile("group")
    with pytest.raises(ValueError, match="no"):
        decorate(fail)()
    assert set(kept.values()) == {"name", "fail.failure", "fail.duration.ms"}


def test_a_config_without_settings():
    assert metrics.MetricsConfig().params == {}
    assert metrics.initialize_metrics(metrics.MetricsConfig({"a": "b"})) is None


@pytest.mark.parametrize(
    ("attempt", "result", "run", "outcome", "flakiness"),
    [
        (0, RunResult(WorkerState.SUCCEEDED), "success", "run_success_no_retries", 0),
        (1, RunResult(WorkerState.SUCCEEDED), "success", "run_success_with_retries", 25),
        (3, RunResult(WorkerState.FAILED), "success", "run_failed_with_retries", 100),
        (0, RunResult(WorkerState.FAILED), "success", "run_failed_no_retries", 100),
        (0, None, "failure", None, None),
    ],
)
def test_the_end_of_a_run(attempt, result, run, outcome, flakiness):
    kept = Kept()
    metrics.configure(kept)
    MetricRecorder()(notifications.AgentFinished(make_group(attempt=attempt), result))
    values = kept.values()
    assert values[f"SimpleElasticAgent.run.{run}"] == 1
    assert values["SimpleElasticAgent.run.duration.ms"] >= 0
    ends = {name for name, value in values.items() if ".run_" in name and value == 1}
    wanted = {"workers.trainer.run_total", f"workers.trainer.{outcome}"} if outcome else set()
    assert ends == wanted
    assert values.get("workers.trainer.flakiness") == flakiness


def test_moments_on_the_way():
    kept = Kept()
    metrics.configure(kept)
    recorder = MetricRecorder()
    recorder(notifications.AfterRendezvous(make_group(attempt=1), duration=0.25))
    recorder(
        notifications.StateChanged(make_group(attempt=1), WorkerState.INIT, WorkerState.HEALTHY)
    )
    assert kept.values() == {
        "SimpleElasticAgent._rendezvous.success": 1,
        "SimpleElasticAgent._rendezvous.duration.ms": 250,
        "workers.trainer.remaining_restarts": 2,
        "workers.trainer.healthy": 1,
    }
