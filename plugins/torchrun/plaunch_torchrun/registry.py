"""The registry of rendezvous backends that are registered in code, as in torchrun.

It has priority over an installed backend of the same name. Prefer a plugin: see docs/plugins.md.
"""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from plaunch.errors import UsageError
from plaunch.plugin import RENDEZVOUS, PluginManager, hookimpl, suggest
from plaunch.rendezvous import traits_of

from plaunch_torchrun import measures
from plaunch_torchrun.bridges import bridge_creator
from plaunch_torchrun.elastic.metrics import is_configured
from plaunch_torchrun.patches import is_torchs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plaunch.plugin import RendezvousFactory
    from plaunch.rendezvous import (
        RendezvousHandler,
        RendezvousHandlerCreator,
        RendezvousParameters,
    )

_TORCH = "torch.distributed.elastic.rendezvous.api"
TORCHRUN_HANDLERS = "torchrun.handlers"


class BackendNameError(UsageError, RuntimeError):
    """A handler has another name than its backend; torchrun raises `RuntimeError`."""


class RendezvousHandlerRegistry:
    """Creators of rendezvous handlers by the name of their backend; names are torchrun's."""

    def __init__(self) -> None:
        self._creators: dict[str, RendezvousHandlerCreator] = {}

    def register(self, backend: str, creator: RendezvousHandlerCreator) -> None:
        """Register a backend; the same creator may be registered again.

        Raises:
            UsageError: the name is empty, or has another creator already.
        """
        if not backend:
            raise UsageError("the rendezvous backend has no name")
        known = self._creators.setdefault(backend, creator)
        if known is not creator:
            raise UsageError(
                f"the rendezvous backend {backend!r} is registered already, with {known!r}; "
                f"{creator!r} needs another name"
            )

    def create_handler(self, params: RendezvousParameters) -> RendezvousHandler:
        """Create a handler with the creator of `params.backend`.

        Raises:
            UsageError: the backend is not registered.
            BackendNameError: the handler has another name.
        """
        creator = self._creators.get(params.backend)
        if creator is None:
            raise UsageError(
                "no rendezvous backend is registered under the name "
                f"{params.backend!r}{suggest(params.backend, self._creators)}"
            )
        handler = creator(params)
        if handler.get_backend() != params.backend:
            raise BackendNameError(
                f"the handler of rendezvous backend {params.backend!r} is named "
                f"{handler.get_backend()!r}; the two names must be the same"
            )
        return handler

    def __contains__(self, backend: object) -> bool:
        return backend in self._creators


rendezvous_handler_registry = RendezvousHandlerRegistry()  # one per process, as in torchrun's API


def get_rendezvous_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Create a handler of any backend, installed or registered; the name is torchrun's.

    Raises:
        UsageError: there is no such backend, or a parameter cannot be used.
        PluginError: the backend cannot be loaded.
    """
    factory = create_manager(params.backend).get(RENDEZVOUS, params.backend)
    traits_of(factory).check_endpoint(params.backend, params.endpoint, params.max_nodes)
    return factory(params)


def create_manager(
    backend: str,
    plugins: Sequence[object] = (),
    *,
    words: Sequence[str] = (),
    entries: list[Any] | None = None,
) -> PluginManager:
    """Create a plugin manager for a launch with `backend`, which may be a registered one.

    torch's own registry is used too, if its module is imported. Metrics are reported if a handler
    is configured.

    Args:
        backend: the name of the backend.
        plugins: the plugins passed in code.
        words: the arguments of `-p`.
        entries: the installed entry points, if they are already known.
    """
    if is_configured():
        plugins = [*plugins, measures]
    factory = _find(backend)
    if factory is not None:
        plugins = [*plugins, _Registered({backend: factory})]
    return PluginManager.create(plugins, words=words, entries=entries)


def _find(backend: str) -> RendezvousFactory | None:
    """Return the factory that a program has registered under a name, also that of a plugin."""
    if backend in rendezvous_handler_registry:
        return rendezvous_handler_registry.create_handler
    torch_registry = getattr(sys.modules.get(_TORCH), "rendezvous_handler_registry", None)
    creators: Mapping[str, Any] = getattr(torch_registry, "_registry", {})
    if backend not in creators or is_torchs(creators[backend]):
        return None
    if entry_points(group=TORCHRUN_HANDLERS, name=backend):
        return None  # torch has registered an installed plugin
    return bridge_creator(
        f"rendezvous backend {backend!r}, registered with torch,",
        backend,
        lambda: creators[backend],
    )


class _Registered:
    """The registered backends that a launch needs, as a plugin."""

    def __init__(self, factories: Mapping[str, RendezvousFactory]) -> None:
        self._factories = factories

    @hookimpl
    def plaunch_rendezvous_backends(self) -> Mapping[str, RendezvousFactory]:
        """Return the registered backends."""
        return self._factories
