from __future__ import annotations

import pytest
from plaunch.doctor import Status
from plaunch.errors import UsageError
from plaunch.health import HealthOccasion
from plaunch.plugin import PluginContext
from plaunch_example_plugins.health import MountCheck


def check(**options):
    return MountCheck(PluginContext("job", "default", "alpha", options=options))


def test_a_node_without_the_file_system_is_not_healthy(tmp_path):
    (found,) = check(argument="/").check(HealthOccasion())
    assert (found.status, found.found) == (Status.OK, "/ is mounted")
    (found,) = check(argument=str(tmp_path)).check(HealthOccasion(is_restart=True))
    assert (found.status, found.found) == (Status.PROBLEM, f"{tmp_path} is not mounted")


@pytest.mark.parametrize("options", [{}, {"argument": "data"}])
def test_it_needs_a_folder(options):
    with pytest.raises(UsageError, match="--health-check=mount:/FOLDER"):
        check(**options)
