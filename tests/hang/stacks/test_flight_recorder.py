"""The variables that `--flight-recorder` sets in workers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from plaunch.agent import WorkerInfo
from plaunch.plugin import PluginContext
from plaunch_hang.stacks import flight_recorder
from plaunch_hang.stacks.plugin import Stacks

from helpers.logs_specs import WithFolder

WORKER = WorkerInfo(1, 5, 5, 8, 8)
ENV = {"PLAUNCH_ROUND": "3", "TORCHELASTIC_RESTART_COUNT": "2"}


@pytest.fixture
def create(tmp_path):
    recorders = []

    def create(version=(2, 13), *, root=tmp_path / "run", environ=None):
        settings = {"logs_specs": WithFolder(root and str(root))}
        context = PluginContext("job", "trainer", "a", settings=settings)
        recorders.append(flight_recorder.FlightRecorder(context, environ or {}, version))
        return recorders[-1]

    yield create
    for recorder in recorders:
        recorder.stop(None)


def test_dumps_go_to_the_folder_of_the_run(create, tmp_path):
    recorder = create()
    found = recorder.environment(WORKER, ENV)
    folder = tmp_path / "run" / "flight_recorder" / "attempt_2-round_3"
    assert found == {
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": f"{folder}/rank_",
    }
    assert folder.is_dir()
    recorder.stop(None)
    assert not folder.parent.exists()  # there is no dump


def test_dumps_are_kept(create, tmp_path):
    recorder = create()
    prefix = recorder.environment(WORKER, ENV)["TORCH_FR_DUMP_TEMP_FILE"]
    Path(f"{prefix}5").touch()
    recorder.stop(None)
    assert Path(f"{prefix}5").exists()


@pytest.mark.parametrize("version", [(), (2, 3), (2, 8)])
def test_older_versions_have_other_names(create, version):
    found = create(version).environment(WORKER, ENV)
    assert found["TORCH_NCCL_TRACE_BUFFER_SIZE"] == found["TORCH_FR_BUFFER_SIZE"] == "2000"
    assert found["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] == found["TORCH_FR_DUMP_TEMP_FILE"]


def test_variables_set_by_the_user_are_kept(create):
    """A new name set by plaunch would override an old name set by the user."""
    environ = {
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "9",
        "TORCH_FR_DUMP_TEMP_FILE": "/x_",
    }
    found = create(environ=environ).environment(WORKER, ENV)
    assert found == {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}


def test_without_a_folder_torchs_default_is_used(create):
    assert "TORCH_FR_DUMP_TEMP_FILE" not in create(root=None).environment(WORKER, ENV)


def test_errors_are_logged_once(create, tmp_path, caplog, monkeypatch):
    (tmp_path / "run").touch()
    recorder = create()
    for _ in range(2):
        found = recorder.environment(WORKER, ENV)
    assert "TORCH_FR_DUMP_TEMP_FILE" not in found
    assert "TORCH_FR_BUFFER_SIZE" in found
    (message,) = caplog.messages
    assert message.startswith("--flight-recorder: dumps of the flight recorder go to torch's")


@pytest.mark.parametrize("options", [{}, {"flight_recorder": False}, {"flight_recorder": True}])
def test_it_is_an_option(options):
    plugin = Stacks()
    extensions = plugin.plaunch_extensions(PluginContext("job", "trainer", "a", options=options))
    is_on = bool(options.get("flight_recorder"))
    assert len(extensions) == is_on
    assert ("TORCH_FR_BUFFER_SIZE" in plugin.plaunch_worker_env(WORKER, ENV)) is (
        is_on and "TORCH_FR_BUFFER_SIZE" not in os.environ
    )
    for extension in extensions:
        extension.stop(None)


def test_the_version_of_torch_is_read_without_an_import(monkeypatch):
    def version(name):
        assert name == "torch"
        return next(versions)

    versions = iter(["2.13.0+cpu", "nightly"])
    monkeypatch.setattr("importlib.metadata.version", version)
    assert flight_recorder.find_torch_version() == (2, 13)
    assert flight_recorder.find_torch_version() == ()
