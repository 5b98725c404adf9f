"""Fixtures for workers of a real fork server."""

from __future__ import annotations

import sys

import pytest

from helpers.fork_servers import Fleet


@pytest.fixture
def fleet():
    fleets = []

    def fleet(modules, *command, python=sys.executable, **options):
        fleets.append(Fleet(modules.split(","), [python, *map(str, command)], **options))
        return fleets[-1]

    yield fleet
    for one in fleets:
        one.preloader.close()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path
