"""`probe_stores`: whether a node reaches a store, and how fast."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest
from plaunch_engines.store_probe import probe_stores
from plaunch_job_store.host import StoreProcess

TOKEN = "0123456789abcdef"


@pytest.fixture
def store():
    """The endpoint of a store."""
    listener = socket.create_server(("127.0.0.1", 0))
    with closing(StoreProcess(listener, TOKEN.encode(), "job", environ={})) as hosted:
        yield f"127.0.0.1:{hosted.port}"


def test_a_store_is_reached(store):
    [found] = probe_stores([store], TOKEN, "job", timeout=60.0)
    assert found.endpoint == store
    assert found.error == ""
    assert found.microseconds > 0


@pytest.mark.parametrize(("token", "job"), [(f"{TOKEN}x", "job"), (TOKEN, "other")])
def test_a_store_of_another_job_is_not_reached(store, token, job):
    [found] = probe_stores([store], token, job, timeout=60.0)
    assert "does not prove that it knows the job's token" in found.error


def test_all_are_tried_and_each_has_its_reason(store):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        endpoint = f"127.0.0.1:{closed.getsockname()[1]}"
    found = probe_stores([endpoint, store], TOKEN, "job", timeout=60.0)
    assert [one.endpoint for one in found] == [endpoint, store]
    assert "Connection refused" in found[0].error
    assert found[1].error == ""


def test_another_program_is_not_the_store():
    with socket.create_server(("127.0.0.1", 0)) as other:
        endpoint = f"127.0.0.1:{other.getsockname()[1]}"
        [found] = probe_stores([endpoint], TOKEN, "job", timeout=0.3)
    assert found.error.startswith(f"the rendezvous store at {endpoint} cannot be reached: ")
