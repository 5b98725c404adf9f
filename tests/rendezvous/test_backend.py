"""What a launch knows of a backend before there is a handler, and the check of the job's token."""

from __future__ import annotations

import copy

import pytest
from plaunch.errors import UsageError
from plaunch.plugin import RENDEZVOUS, PluginManager
from plaunch.rendezvous import (
    TOKEN_OPTION,
    TOKEN_VARIABLE,
    BackendTraits,
    RendezvousParameters,
    backend_traits,
    traits_of,
)
from plaunch.rendezvous.backend import check_token_is_used

SECRET = "correct horse battery staple"
# The default ports in torchrun's documentation, and etcd's own.
PORTS = {"static": 29500, "c10d": 29400, "etcd": 2379, "etcd-v2": 2379}


def test_declaring_traits_returns_the_same_backend():
    traits = BackendTraits(needs_endpoint=True, default_port=7)

    @backend_traits(traits)
    def create(params):
        return params

    assert create("params") == "params"
    assert traits_of(create) is traits


def test_one_that_declares_nothing_has_the_usual_ones():
    def create(params):
        return params

    create.plaunch_traits = "odd"
    assert traits_of(create) == traits_of(print) == BackendTraits()


def test_those_of_the_backends_that_come_with_plaunch():
    manager = PluginManager.create(environ={}, first_party_only=True)
    traits = {name: traits_of(manager.get(RENDEZVOUS, name)) for name in PORTS}
    assert {name: one.default_port for name, one in traits.items()} == PORTS
    assert {name for name, one in traits.items() if one.has_given_ranks} == {"static"}
    assert {name for name, one in traits.items() if not one.coordinates_restarts} == {"static"}
    assert {name for name, one in traits.items() if one.is_hosted_by_node} == {"static", "c10d"}
    assert all(one.needs_endpoint for one in traits.values())


@pytest.mark.parametrize(
    ("more", "advice"),
    [
        ({}, "give --rdzv-endpoint with the address of the backend's store"),
        ({"is_hosted_by_node": True}, "give --rdzv-endpoint with the name of one node"),
        ({"is_hosted_by_node": True, "has_given_ranks": True}, "give --master-addr with that of"),
    ],
)
def test_several_nodes_need_an_endpoint(more, advice):
    traits = BackendTraits(needs_endpoint=True, **more)
    with pytest.raises(UsageError, match=rf"4 nodes .* backend 'acme' need an address.*{advice}"):
        traits.check_endpoint("acme", "", 4)
    traits.check_endpoint("acme", "", 1)
    traits.check_endpoint("acme", "node0", 4)
    BackendTraits(**more).check_endpoint("acme", "", 4)


# --- the job's token ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "environ", "where"),
    [
        ({"token_file": "/x"}, {}, "--rdzv-conf token_file=/x"),
        ({}, {TOKEN_VARIABLE: SECRET}, TOKEN_VARIABLE),
    ],
)
def test_a_token_without_a_backend_that_signs(config, environ, where):
    several = RendezvousParameters("other", "", "job", 1, 2, **config)
    with pytest.raises(UsageError, match="'other' does not sign anything") as caught:
        check_token_is_used(several, environ)
    assert where in str(caught.value)
    assert SECRET not in str(caught.value)
    # On one node there is nobody to tell apart.
    check_token_is_used(RendezvousParameters("other", "", "job", 1, 1, **config), environ)


def test_a_job_without_a_token_or_with_one_that_is_used():
    several = RendezvousParameters("other", "", "job", 1, 2)
    check_token_is_used(several, {})
    copied = copy.copy(several)
    copied.secrets_read.add(TOKEN_OPTION)
    check_token_is_used(several, {TOKEN_VARIABLE: SECRET})
