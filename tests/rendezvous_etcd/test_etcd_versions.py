"""Outdated servers get a warning, once per launch."""

from __future__ import annotations

import logging
import re
import subprocess

import pytest
from plaunch_rendezvous_etcd.versions import is_outdated


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("3.5.1", True),
        ("3.5.6", True),
        ("3.5.7", False),
        ("3.5.28", False),
        ("3.4.22", True),
        ("3.4.23", False),
        ("3.3.27", True),
        ("2.3.8", True),
        ("3.6.0-rc.1", False),
        ("4.0.0", False),
        ("", False),
        ("unknown", False),
    ],
)
def test_versions_with_crashes_are_outdated(version, expected):
    assert is_outdated(version) == expected


@pytest.fixture
def warnings(caplog):
    """Return the warnings about versions so far."""
    caplog.set_level(logging.WARNING, "plaunch")
    return lambda: [text for text in caplog.messages if " is version " in text]


def version_of(server):
    done = subprocess.run([server.program, "--version"], capture_output=True, text=True, check=True)
    return re.search(r"etcd Version: (\S+)", done.stdout)[1]


def test_the_warning_comes_once_and_names_server_and_version(warnings, prepare, own_etcd_server):
    version = version_of(own_etcd_server)
    backend = prepare(own_etcd_server.endpoint)
    backend.connect().set("key", b"x")
    own_etcd_server.kill()
    own_etcd_server.start()
    backend.connect().set("key", b"x")
    assert len(warnings()) == is_outdated(version)
    for text in warnings():
        assert text.startswith(f"etcd at {own_etcd_server.endpoint} is version {version}, ")
        assert text.endswith("upgrade it to at least 3.4.23 or 3.5.7")


def test_an_ordinary_user_may_read_the_version(
    warnings, prepare, etcd_server, secure_server, secure
):
    prepare(secure_server.endpoint, **secure).connect()
    assert len(warnings()) == is_outdated(version_of(secure_server))
