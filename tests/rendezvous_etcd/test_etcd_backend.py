"""Handlers made from parameters; and jobs that follow one another on one etcd."""

from __future__ import annotations

import pytest
from plaunch.errors import RendezvousClosedError, RendezvousStateError, UsageError
from plaunch.plugin import RENDEZVOUS
from plaunch.rendezvous import RendezvousParameters
from plaunch.testing import plugin_manager
from plaunch_membership import DynamicRendezvousHandler
from plaunch_rendezvous_etcd import create_etcd_handler
from plaunch_rendezvous_etcd.backend import create_session
from plaunch_testing.conformance.nodes import Node, eventually, meet


@pytest.fixture
def create(params_of, etcd_server):
    nodes = []

    def make(run_id, nodes_wanted=1, **config):
        config.update(min_nodes=nodes_wanted, max_nodes=nodes_wanted)
        params = params_of(etcd_server.endpoint, run_id, **config)
        nodes.append(Node(create_etcd_handler(params)))
        return nodes[-1]

    yield make
    for node in nodes:
        node.close()


@pytest.mark.parametrize("name", ["etcd", "etcd-v2"])
def test_it_is_selected_by_both_names(name, etcd_server):
    create = plugin_manager().get(RENDEZVOUS, name)
    handler = create(RendezvousParameters(name, etcd_server.endpoint, "selected", 1, 1))
    try:
        assert isinstance(handler, DynamicRendezvousHandler)
        assert handler.get_backend() == name
        assert handler.next_rendezvous().world_size == 1
    finally:
        handler.leave()


def test_an_unknown_option_is_rejected(params_of):
    with pytest.raises(UsageError, match=r"'etcd_pasword'.*did you mean 'etcd_password_file'"):
        create_etcd_handler(params_of("a", etcd_pasword="x"))


def test_the_first_backends_timeout_is_the_join_timeout(create):
    node = create("legacy time-out", 2, backend="etcd", timeout="0.5")
    assert node.handler.membership.timing.join_timeout == 0.5
    both = create("legacy time-out", 2, backend="etcd", timeout=900, join_timeout=2)
    assert both.handler.membership.timing.join_timeout == 2
    # The second one never had it and warns about it, because torchrun sets it for all backends.
    other = create("legacy time-out", 2, timeout=900)
    assert other.handler.membership.timing.join_timeout == 600


def test_the_two_backends_have_separate_jobs(create):
    one, other = create("shared"), create("shared", backend="etcd")
    for node in (one, other):
        (met,) = meet(node)
        assert met.world_size == 1


@pytest.mark.parametrize(
    ("config", "presence", "job", "answer"),
    [
        ({}, 3, 7200, 5 / 3),
        ({"keep_alive_interval": 5, "keep_alive_max_attempt": 3}, 10, 7200, 5),
        ({"keep_alive_interval": 0.1, "job_ttl": 60}, 2, 60, 1),
        ({"verdict_ttl": 86400, "read_timeout": 0.5}, 3, 129600, 0.5),
    ],
)
def test_times_follow_from_the_options(params_of, config, presence, job, answer):
    session = create_session(params_of("127.0.0.1:1", **config))
    assert (session.presence_lease.ttl, session.job_lease.ttl) == (presence, job)
    assert session.answer_timeout == pytest.approx(answer)


def test_a_finished_run_id_returns_its_verdict(create):
    node = create("finished")
    meet(node)
    node.job.report_success()
    eventually(lambda: node.verdict is not None, "the job is over")
    node.close()
    with pytest.raises(RendezvousClosedError, match="succeeded"):
        create("finished").join().round()


def test_a_job_that_has_crashed_is_replaced(create, caplog):
    quick = {"keep_alive_interval": 0.2, "keep_alive_max_attempt": 3}
    node = create("crashed", **quick)
    meet(node)
    node.kill()
    (met,) = meet(create("crashed", **quick))
    assert met.attempt == 0
    assert "crashed" in caplog.text


def test_garbage_in_a_counter_ends_the_job_by_name(create, open_session, etcd_server):
    run_id, log = "counter", "round/1/joined/tickets"
    node = create(run_id)
    meet(node)
    client = open_session(etcd_server.endpoint)
    prefix = node.handler.membership.keys.refusal.removesuffix("refusal")
    key = f"{client.options.prefix}/{prefix}{log}".encode()
    client.call("KV", "Put", client.protocol.message("PutRequest")(key=key, value=b"garbage"))
    with pytest.raises(RendezvousStateError, match=f"counter under .*{log}.* holds b'garbage'"):
        node.join().round()


def test_no_key_of_a_job_is_left_when_its_lease_expires(create, etcd_server, open_session):
    node = create("cleaned")
    meet(node)
    keys = _keys(open_session, etcd_server)
    assert any("/plaunch/cleaned/" in key for key in keys)
    leases = {lease for key, lease in keys.items() if "/plaunch/cleaned/" in key}
    assert 0 not in leases
    node.close()
    for lease in leases:
        etcd_server.ask("lease/revoke", ID=lease)
    assert not any("/plaunch/cleaned/" in key for key in _keys(open_session, etcd_server))


def _keys(open_session, server):
    """All keys, and the lease of each."""
    client = open_session(server.endpoint)
    request = client.protocol.message("RangeRequest")(key=b"\0", range_end=b"\0", keys_only=True)
    return {kv.key.decode(): kv.lease for kv in client.call("KV", "Range", request).kvs}
