"""The extension without a launch, with a fake control."""

from __future__ import annotations

import time

import pytest
from plaunch.doctor import DoctorContext, Status
from plaunch.plugin import PluginContext
from plaunch_example_extension import options, reload
from plaunch_testing.conformance import HooksConformance, OptionsConformance


class Control:
    """Records requests."""

    def __init__(self):
        self.requests, self.said = [], []

    def request(self, kind, reason):
        self.requests.append((kind, reason))

    def say(self, text):
        self.said.append(text)


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def running(tmp_path, monkeypatch):
    monkeypatch.setattr(reload, "PERIOD", 0.01)
    path = tmp_path / "reload"
    started = []

    def run():
        (extension,) = reload.plaunch_extensions(
            PluginContext("job", "role", "host", options={"reload_file": str(path)})
        )
        started.append(extension)
        control = Control()
        extension.start(control)
        return path, control

    yield run
    for extension in started:
        extension.stop(None)


def test_each_appearance_of_the_file_requests_a_restart(running):
    path, control = running()
    for _ in range(2):
        path.touch()
        until(lambda: control.requests)
        assert not path.exists()
        assert control.requests.pop() == ("restart", f"{path} has appeared")
        assert control.requests == []


def test_a_file_that_existed_before_requests_no_restart(running, tmp_path):
    (tmp_path / "reload").touch()
    path, control = running()
    assert "already exists" in control.said[0]
    path.unlink()
    time.sleep(0.05)
    path.touch()
    until(lambda: control.requests)


def test_without_the_option_there_is_no_extension():
    assert reload.plaunch_extensions(PluginContext("job", "role", "host")) == []
    assert list(reload.plaunch_doctor_checks(DoctorContext())) == []


@pytest.mark.parametrize(("folder", "status"), [("there", Status.OK), ("gone", Status.PROBLEM)])
def test_the_doctor_check(tmp_path, folder, status):
    (tmp_path / "there").mkdir()
    context = DoctorContext(options={"reload_file": str(tmp_path / folder / "reload")})
    (finding,) = reload.plaunch_doctor_checks(context)
    assert finding.status is status


class TestOptions(OptionsConformance):
    def plugin(self):
        return options


class TestHooks(HooksConformance):
    @pytest.fixture(autouse=True)
    def _options(self, tmp_path):
        self.options = {"reload_file": str(tmp_path / "reload")}

    def plugin(self):
        return reload
