"""Interpreter, versions, clock."""

from __future__ import annotations

import pytest
from plaunch.doctor import Status
from plaunch_doctor.host import check_clock
from plaunch_doctor.installation import check_interpreter, check_versions

OK, WARNING, PROBLEM = Status.OK, Status.WARNING, Status.PROBLEM


@pytest.mark.parametrize(
    ("environ", "what", "status"),
    [
        ({"VIRTUAL_ENV": "/venv"}, "VIRTUAL_ENV", OK),
        ({"VIRTUAL_ENV": "/venv/"}, "VIRTUAL_ENV", OK),
        ({"VIRTUAL_ENV": "/other"}, "VIRTUAL_ENV", WARNING),
        ({"UV_PROJECT_ENVIRONMENT": "/other"}, "UV_PROJECT_ENVIRONMENT", WARNING),
        ({"CONDA_PREFIX": "/conda"}, "CONDA_PREFIX", WARNING),
        ({"CONDA_PREFIX": "/usr"}, "CONDA_PREFIX", OK),  # the environment is made from conda's
        ({"VIRTUAL_ENV": "/venv", "CONDA_PREFIX": "/conda"}, "VIRTUAL_ENV", OK),
        ({"PYTHON_EXEC": "/gone/python"}, "PYTHON_EXEC", PROBLEM),
        ({"PYTHON_EXEC": "/opt/python"}, "PYTHON_EXEC", WARNING),
    ],
)
def test_the_interpreter_is_the_intended_one(node, environ, what, status):
    node.machine.programs = {"/opt/python": "/opt/python"}
    assert node.only(check_interpreter, what, environ=environ).status is status


@pytest.mark.parametrize(("environ", "count"), [({}, 2), ({"UV_PROJECT_ENVIRONMENT": ".venv"}, 2)])
def test_without_an_environment_nothing_is_compared(node, environ, count):
    assert len(node.check(check_interpreter, environ=environ)) == count


@pytest.mark.parametrize(
    ("path", "status"),
    [("", OK), ("/venv/bin/plaunch", OK), ("/home/me/.local/bin/plaunch", WARNING)],
)
def test_the_plaunch_on_path_is_this_one(node, path, status):
    node.machine.programs = {"plaunch": path, "torchrun": "/usr/bin/torchrun"}
    node.check_says(status, "torchrun: /usr/bin/torchrun", check_interpreter, "PATH")


@pytest.mark.parametrize(
    ("backend", "configs", "status"),
    [
        ("static", {}, WARNING),
        ("c10d", {}, WARNING),
        ("c10d", {"store": "torch"}, PROBLEM),
        ("plaunch:c10d", {"store_type": "file"}, PROBLEM),
    ],
)
def test_a_missing_torch_is_a_problem_for_its_stores(node, backend, configs, status):
    settings = {"rdzv_backend": backend, "rdzv_configs": configs}
    found = node.only(check_versions, settings=settings)
    assert (found.what, found.status) == ("torch", status)


@pytest.mark.parametrize(
    ("version", "source", "device", "said", "status"),
    [
        ("2.13.0", "cuda: Optional[str] = '12.6'\nhip = None\n", "nvidia0", "CUDA 12.6", OK),
        ("2.13.0+cpu", "cuda = None\n", "nvidia0", "built for CPU", WARNING),
        ("2.13.0+cpu", "cuda = None\n", "null", "built for CPU", OK),
        ("2.9.0", "cuda = None\nhip = '6.2'\n", "kfd", "ROCm 6.2", OK),
        ("2.2.1", "cuda = '12.1'\n", "nvidia0", "2.3 or newer", WARNING),
        ("2.13.0", None, "null", "an unknown platform", OK),
    ],
)
def test_torch_is_new_enough_and_built_for_the_devices(
    node, tmp_path, version, source, device, said, status
):
    node.write(f"/dev/{device}")
    if source is not None:
        node.write("/site/torch/version.py", source)
    node.machine.packages = {"torch": (version, str(tmp_path / "site"))}
    node.check_says(status, said, check_versions)


def test_an_untested_python_is_named(node):
    node.machine.version = (3, 99, 0)
    assert node.only(check_versions, "Python").status is WARNING


@pytest.mark.parametrize(
    ("time", "synchronised", "status"),
    [
        (1_800_000_000.0, True, OK),
        (1_800_000_000.0, None, OK),
        (1_800_000_000.0, False, WARNING),
        (0.0, True, PROBLEM),
        (1e11, True, PROBLEM),
    ],
)
def test_the_clock(node, time, synchronised, status):
    node.machine.time, node.machine.synchronised = time, synchronised
    assert node.only(check_clock).status is status
