"""What the engine `ray` refuses, and where it looks for the cluster."""

import pytest
from plaunch.engines import EngineRequest
from plaunch.errors import UsageError
from plaunch_engines.ray_engine import RayEngine, read_address, read_resources


def test_ray_must_be_installed(monkeypatch):
    monkeypatch.setattr("plaunch_engines.ray_engine.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs the package ray.*: install plaunch\[ray\]"):
        RayEngine(EngineRequest(where="host:1", options={"ray_resources": "{}"}))


@pytest.mark.parametrize(
    ("where", "variable", "expected"),
    [
        ("", None, "auto"),
        ("auto", "other:1", "auto"),
        ("", "host:6379", "host:6379"),
        ("10.0.0.1:6379", "host:6379", "10.0.0.1:6379"),
        ("[::1]:6379", None, "[::1]:6379"),
    ],
)
def test_the_address_of_the_cluster(monkeypatch, where, variable, expected):
    if variable is None:
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
    else:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    assert read_address(where) == expected


@pytest.mark.parametrize(
    ("where", "variable", "message"),
    [
        ("local", "", "--on=ray:local: 'local' is not HOST:PORT"),
        ("", "local", "RAY_ADDRESS=local: 'local' is not HOST:PORT"),
        ("host", "", "'host' is not HOST:PORT"),
        ("host:0", "", "'host:0' is not HOST:PORT"),
        ("host:x", "", "'host:x' is not HOST:PORT"),
        ("ray://host:10001", "", "client protocol"),
    ],
)
def test_an_address_that_would_start_a_cluster_is_refused(monkeypatch, where, variable, message):
    monkeypatch.setenv("RAY_ADDRESS", variable)
    with pytest.raises(UsageError, match=message):
        read_address(where)


def test_resources_have_one_cpu_by_default():
    assert read_resources('{"GPU": 8, "disk": 0}') == {"CPU": 1, "GPU": 8}
    assert read_resources('{"CPU": 0, "GPU": 0.5}') == {"GPU": 0.5}


@pytest.mark.parametrize("text", ["8", "GPU=8", '{"GPU": "8"}', '{"GPU": -1}', '{"GPU": true}'])
def test_resources_that_are_invalid(text):
    with pytest.raises(UsageError, match="is not a JSON object, such as"):
        read_resources(text)


def test_resources_that_are_none():
    with pytest.raises(UsageError, match="requests nothing"):
        read_resources('{"CPU": 0}')
