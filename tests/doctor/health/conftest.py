"""Fixtures for tests of the built-in health checks."""

from __future__ import annotations

import pytest
from plaunch import LaunchConfig
from plaunch.doctor import Status
from plaunch.plugin import PluginContext

from helpers.gates import gate
from helpers.occasions import START
from helpers.site import own_metadata, site

__all__ = ["gate", "own_metadata", "site"]


@pytest.fixture
def context(tmp_path):
    """Make the context of a launch; `argument` is the text after the check's name."""

    def make(argument=None, log_dir=None, **settings):
        fields = {"min_nodes": 1, "max_nodes": 1, "nproc_per_node": 1, **settings}
        options = {} if argument is None else {"argument": argument}
        config = LaunchConfig(**fields).settings()
        return PluginContext("job", "default", "node0", log_dir, config, options)

    return make


@pytest.fixture
def run():
    """Run a check; return its findings as texts, with `!` before those that exclude the node."""

    def ask(check, occasion=START):
        marks = {Status.OK: "", Status.WARNING: "? "}
        return [f"{marks.get(found.status, '! ')}{found.found}" for found in check.check(occasion)]

    return ask
