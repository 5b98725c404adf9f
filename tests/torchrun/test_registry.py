"""Rendezvous backends that are registered in code."""

from __future__ import annotations

import pytest
from plaunch.errors import UnknownNameError, UsageError
from plaunch.plugin import RENDEZVOUS
from plaunch.rendezvous import RendezvousParameters
from plaunch_rendezvous_static import SingleNodeRendezvous
from plaunch_torchrun import registry
from plaunch_torchrun.registry import (
    RendezvousHandlerRegistry,
    create_manager,
    get_rendezvous_handler,
)


class Handler:
    def __init__(self, params, name=None):
        self.params = params
        self.name = name or params.backend

    def get_backend(self):
        return self.name


def parameters(backend):
    return RendezvousParameters(backend, "", "job", 1, 1)


@pytest.fixture
def known(monkeypatch):
    known = RendezvousHandlerRegistry()
    monkeypatch.setattr(registry, "rendezvous_handler_registry", known)
    return known


def test_a_registered_backend(known):
    known.register("mine", Handler)
    known.register("mine", Handler)
    params = parameters("mine")
    assert get_rendezvous_handler(params).params is params
    assert known.create_handler(params).params is params


def test_several_nodes_need_an_endpoint():
    with pytest.raises(UsageError, match=r"2 nodes .* give --rdzv-endpoint"):
        get_rendezvous_handler(RendezvousParameters("c10d", "", "job", 1, 2))


def test_a_registered_backend_replaces_an_installed_one(known):
    known.register("static", Handler)
    assert isinstance(get_rendezvous_handler(parameters("static")), Handler)


def test_another_creator_of_the_same_name(known):
    known.register("mine", Handler)
    with pytest.raises(ValueError, match="'mine' is registered already"):
        known.register("mine", object)


def test_a_backend_without_a_name(known):
    with pytest.raises(UsageError, match="has no name"):
        known.register("", Handler)


def test_an_unregistered_backend(known):
    known.register("mine", Handler)
    with pytest.raises(UsageError, match="did you mean 'mine'"):
        known.create_handler(parameters("mine2"))
    with pytest.raises(UnknownNameError, match="mine2"):
        get_rendezvous_handler(parameters("mine2"))


def test_a_handler_with_another_name(known):
    known.register("mine", lambda params: Handler(params, "other"))
    with pytest.raises(UsageError, match="is named 'other'") as raised:
        known.create_handler(parameters("mine"))
    assert isinstance(raised.value, RuntimeError), "as torchrun's"


def test_a_backend_registered_with_torch(known, monkeypatch):
    api = pytest.importorskip("torch.distributed.elastic.rendezvous.api")
    monkeypatch.setattr(api, "rendezvous_handler_registry", api.RendezvousHandlerRegistry())
    seen = []

    def create(params):
        seen.append(params)
        return Handler(params)

    api.rendezvous_handler_registry.register("custom", create)
    handler = create_manager("custom").get(RENDEZVOUS, "custom")(parameters("custom"))
    assert handler.get_backend() == "custom"
    assert isinstance(seen[0], api.RendezvousParameters)


def test_torchs_own_handlers_are_not_used(known, monkeypatch):
    registry = pytest.importorskip("torch.distributed.elastic.rendezvous.registry")
    assert registry
    handler = get_rendezvous_handler(parameters("static"))
    assert isinstance(handler, SingleNodeRendezvous)
    handler.shutdown()


def test_a_builtin_name_registered_with_torch(known, monkeypatch):
    pytest.importorskip("torch.distributed.elastic.rendezvous.registry")
    api = pytest.importorskip("torch.distributed.elastic.rendezvous.api")
    seen = []

    def create(params):
        seen.append(params)
        return Handler(params)

    monkeypatch.setitem(api.rendezvous_handler_registry._registry, "c10d", create)
    create_manager("c10d").get(RENDEZVOUS, "c10d")(parameters("c10d"))
    assert isinstance(seen[0], api.RendezvousParameters)
