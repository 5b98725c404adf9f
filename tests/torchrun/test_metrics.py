"""Metrics of a launch, and their handlers."""

from __future__ import annotations

import logging

import pytest
from plaunch.config import LaunchConfig
from plaunch.events import Event, EventSource
from plaunch.process import ChildFailedError
from plaunch_torchrun.elastic import metrics
from plaunch_torchrun.launcher import elastic_launch
from plaunch_torchrun.measures import MetricRecorder


class Kept(metrics.MetricHandler):
    def __init__(self):
        self.all = []

    def emit(self, metric_data):
        self.all.append(metric_data)

    def values(self):
        return {data.name: data.value for data in self.all}


@pytest.fixture(autouse=True)
def handlers(monkeypatch):
    monkeypatch.setattr(metrics, "_HANDLERS", metrics._Handlers())


@pytest.fixture
def kept():
    """The default handler, which records metrics."""
    kept = Kept()
    metrics.configure(kept)
    return kept


def test_there_is_no_handler_by_default():
    assert isinstance(metrics.getStream("any").handler, metrics.NullMetricHandler)
    metrics.put_metric("name", 1)


def test_a_group_with_its_own_handler():
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


def test_a_handler_that_fails_is_logged_once(caplog):
    class Broken(metrics.MetricHandler):
        def emit(self, metric_data):
            raise OSError("no disk")

    metrics.configure(Broken())
    with caplog.at_level(logging.WARNING, "plaunch"):
        metrics.put_metric("name", 1)
        metrics.put_metric("name", 1)
    (record,) = caplog.records
    assert "no disk" in record.getMessage()


def test_prof_of_a_method(kept):
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


def test_names_that_are_deprecated(kept):
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


def event(name, **found):
    return Event(f"plaunch.{name}", EventSource.AGENT, metadata={"attempt": 0, **found})


@pytest.mark.parametrize(
    ("attempt", "outcome", "run", "counted", "flakiness"),
    [
        (0, "succeeded", "success", "run_success_no_retries", 0),
        (1, "succeeded", "success", "run_success_with_retries", 25),
        (0, "not_needed", "success", "run_success_no_retries", 0),
        (3, "failed", "success", "run_failed_with_retries", 100),
        (0, "failed", "success", "run_failed_no_retries", 100),
        (0, "signalled", "failure", None, None),
    ],
)
def test_the_end_of_a_run(attempt, outcome, run, counted, flakiness, kept):
    recorder = MetricRecorder("trainer", 3)
    recorder.handle(event("launcher.finished", attempt=attempt, outcome=outcome, seconds_total=1.5))
    values = kept.values()
    assert values[f"SimpleElasticAgent.run.{run}"] == 1
    assert values["SimpleElasticAgent.run.duration.ms"] == 1500
    ends = {name for name, value in values.items() if ".run_" in name and value == 1}
    wanted = {"workers.trainer.run_total", f"workers.trainer.{counted}"} if counted else set()
    assert ends == wanted
    assert values.get("workers.trainer.flakiness") == flakiness


def test_events_during_the_launch(kept):
    recorder = MetricRecorder("trainer", 3)
    recorder.handle(event("rendezvous.completed", attempt=1, duration=0.25))
    recorder.handle(event("workers.started", attempt=1, duration=0.5))
    recorder.handle(event("state.changed", attempt=1, old="INIT", new="HEALTHY"))
    assert kept.values() == {
        "SimpleElasticAgent._rendezvous.success": 1,
        "SimpleElasticAgent._rendezvous.duration.ms": 250,
        "LocalElasticAgent._start_workers.success": 1,
        "LocalElasticAgent._start_workers.duration.ms": 500,
        "workers.trainer.remaining_restarts": 2,
        "workers.trainer.healthy": 1,
    }


def test_a_launch_reports_to_the_configured_handler(kept):
    config = LaunchConfig(1, 1, 1, role="trainer", max_restarts=1)
    with pytest.raises(ChildFailedError):
        elastic_launch(config, "false")()
    values = kept.values()
    assert values["workers.trainer.run_failed_with_retries"] == 1
    assert values["SimpleElasticAgent.run.success"] == 1
    names = [data.name for data in kept.all]
    assert names.count("LocalElasticAgent._start_workers.success") == 2
    assert names.count("SimpleElasticAgent._rendezvous.success") == 2
