"""The engine with a fake podman, on any machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from plaunch.engines import EngineRequest
from plaunch.errors import UsageError
from plaunch_example_podman import options
from plaunch_example_podman.engine import PodmanEngine
from plaunch_testing.conformance import EngineConformance, OptionsConformance

FAKE = Path(__file__).with_name("fake_podman.py")
IMAGE = {"podman_image": "localhost/train"}


@pytest.fixture(autouse=True)
def podman(tmp_path, monkeypatch):
    """The fake podman as the program `podman`."""
    for name in ("bin", "containers"):
        (tmp_path / name).mkdir()
    (tmp_path / "bin/podman").symlink_to(FAKE)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin", prepend=os.pathsep)
    monkeypatch.setenv("FAKE_PODMAN", str(tmp_path / "containers"))
    return tmp_path / "bin/podman"


class TestPodman(EngineConformance):
    where = "2"
    options = IMAGE

    def plugin(self):
        return PodmanEngine


class TestOptions(OptionsConformance):
    def plugin(self):
        return options


@pytest.mark.parametrize(
    ("where", "given", "message"),
    [
        ("two", IMAGE, "'two' is not a number of nodes"),
        ("2", {}, "needs an image with plaunch: --podman-image=IMAGE"),
        ("2", {"podman_image": "other"}, "no image 'other' .* podman pull other"),
        ("2", {**IMAGE, "podman_options": ["--ipc='host"]}, "--podman-options: No closing"),
    ],
)
def test_errors_of_the_user(where, given, message):
    with pytest.raises(UsageError, match=message):
        PodmanEngine(EngineRequest(where=where, options=given))


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "podman, which is not in PATH"), ("echo why >&2; exit 125", "does not work here: why")],
)
def test_a_podman_that_is_missing_or_broken(podman, monkeypatch, text, message):
    podman.unlink()
    if text is None:
        monkeypatch.setenv("PATH", str(podman.parent))
    else:
        podman.write_text(f"#!/bin/sh\n{text}\n")
        podman.chmod(0o755)
    with pytest.raises(UsageError, match=message):
        PodmanEngine(EngineRequest(where="2", options=IMAGE))


def test_without_a_number_there_are_as_many_as_the_job_needs():
    assert PodmanEngine(EngineRequest(options=IMAGE)).nodes is None


def test_options_and_folder_are_passed_to_podman_run(podman, tmp_path):
    podman.unlink()
    podman.write_text(f'#!/bin/sh\n[ "$1" = image ] || echo "$*" >> {tmp_path}/words\n')
    podman.chmod(0o755)
    given = {**IMAGE, "podman_options": ["--ipc=host --device=a", "--volume='/a b:/a'"]}
    engine = PodmanEngine(EngineRequest(folder="/work", options=given, job="plaunch-1"))
    (handle,) = engine.start(["python", "-m", "agent"], [3])
    while handle.poll() is None:
        pass
    words = (tmp_path / "words").read_text().strip()
    assert words.endswith("--volume=/work:/work --ipc=host --device=a --volume=/a b:/a "
                          "localhost/train python -m agent")  # fmt: skip
    assert "--name=plaunch-1-3 " in words
    assert handle.node == "podman3"
    engine.close()
    handle.close()
