"""Adapters for plugins written for torchrun, so that its two entry-point groups work unchanged.

Such plugins import torch themselves and get torch's own types. What they return is read by
attribute.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from typing import TYPE_CHECKING, Any

from plaunch.errors import (
    LogDirectoryError,
    PluginError,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
    UsageError,
)
from plaunch.plugin import one_line
from plaunch.process import LogsSpecs, Std, read_dest
from plaunch.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from plaunch.plugin import RendezvousFactory
    from plaunch.process import LogsDest, Sink

_PROCESS_API = "torch.distributed.elastic.multiprocessing.api"
_RENDEZVOUS_API = "torch.distributed.elastic.rendezvous.api"

# The option `timeout` that torchrun adds for every backend by default, in seconds.
_TORCHRUN_TIMEOUT = 900

_RENDEZVOUS_ERRORS: dict[str, type[RendezvousError]] = {
    "RendezvousClosedError": RendezvousClosedError,
    "RendezvousConnectionError": RendezvousConnectionError,
    "RendezvousGracefulExitError": RendezvousGracefulExitError,
    "RendezvousStateError": RendezvousStateError,
    "RendezvousTimeoutError": RendezvousTimeoutError,
    "RendezvousError": RendezvousError,
}


# --- logs specs -----------------------------------------------------------------------------------


def bridge_logs_specs(thing: object) -> type[LogsSpecs] | None:
    """Create a logs spec class of plaunch from a class derived from torch's `LogsSpecs`.

    Return None for any other object. torch is not imported: a derived class has imported it.
    """
    if not isinstance(thing, type):
        return None
    for base in thing.__mro__:
        if (base.__module__, base.__name__) == (_PROCESS_API, "LogsSpecs"):
            return _bridged_class(thing, sys.modules[_PROCESS_API].Std)
    return None


class TorchLogsSpecs(LogsSpecs):
    """Adapts an object of torch's `LogsSpecs`.

    Args:
        specs: the object.
        settings: the arguments of `LogsSpecs`, if known.
    """

    def __init__(self, specs: Any, *settings: Any) -> None:
        super().__init__(*settings)
        self._specs = specs

    @property
    def of_torch(self) -> Any:
        """The object."""
        return self._specs

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Call the object, and convert its result."""
        return read_dest(self._specs.reify(envs))

    def open_sink(self, local_rank: int, stream: str) -> Sink | None:
        """Open the object's sink, if it has this extension of plaunch."""
        open_its: Callable[..., Sink | None] | None = getattr(self._specs, "open_sink", None)
        return None if open_its is None else open_its(local_rank, stream)

    @property
    def root_log_dir(self) -> str | None:
        """The object's folder, as text."""
        root = self._specs.root_log_dir
        return None if root is None else str(root)

    def __repr__(self) -> str:
        return repr(self._specs)


def _bridged_class(torch_class: type[Any], torch_std: Callable[[int], Any]) -> type[LogsSpecs]:
    def translate(streams: Std | Mapping[int, Std]) -> Any:
        if isinstance(streams, int):
            return torch_std(int(streams))
        return {rank: torch_std(int(std)) for rank, std in streams.items()}

    class BridgedLogsSpecs(TorchLogsSpecs):
        def __init__(
            self,
            log_dir: str | None = None,
            redirects: Std | Mapping[int, Std] = Std.NONE,
            tee: Std | Mapping[int, Std] = Std.NONE,
            local_ranks_filter: set[int] | None = None,
        ) -> None:
            try:
                specs = torch_class(
                    log_dir=log_dir,
                    redirects=translate(redirects),
                    tee=translate(tee),
                    local_ranks_filter=local_ranks_filter,
                )
            except NotADirectoryError as error:
                raise LogDirectoryError(f"{error} (--log-dir)") from error
            super().__init__(specs, log_dir, redirects, tee, local_ranks_filter)

    BridgedLogsSpecs.__name__ = torch_class.__name__
    BridgedLogsSpecs.__qualname__ = torch_class.__qualname__
    BridgedLogsSpecs.__doc__ = torch_class.__doc__
    return BridgedLogsSpecs


# --- rendezvous -----------------------------------------------------------------------------------


def import_rendezvous() -> None:
    """Import torch's rendezvous package, if torch is installed.

    It imports all entry points of torchrun's group. If one of them were the first to import that
    package, torch would find its module half imported, and print a traceback.
    """
    with contextlib.suppress(ImportError):
        importlib.import_module(_RENDEZVOUS_API.rpartition(".")[0])


def bridge_creator(who: str, name: str, get_creator: Any) -> RendezvousFactory:
    """Create a rendezvous factory from a value of torchrun's entry-point group.

    Args:
        who: the name of the plugin in messages.
        name: the backend's name, without a distribution.
        get_creator: the value: a function that returns torchrun's creator. It is called once, and
            its exceptions propagate.
    """
    creator = get_creator()
    if not callable(creator):
        raise TypeError(
            "torchrun's group needs a function that returns the creator; this one returned "
            f"{creator!r}"
        )

    def create(params: RendezvousParameters) -> RendezvousHandler:
        from torch.distributed.elastic.rendezvous import api

        options = {"timeout": _TORCHRUN_TIMEOUT, **params.config}
        with _translated(who):
            try:
                handler = creator(
                    api.RendezvousParameters(
                        backend=name,
                        endpoint=params.endpoint,
                        run_id=params.run_id,
                        min_nodes=params.min_nodes,
                        max_nodes=params.max_nodes,
                        local_addr=params.local_addr,
                        **options,
                    )
                )
            except ValueError as error:
                raise UsageError(f"{who} does not accept its parameters: {error}") from error
        if isinstance(handler, RendezvousHandler):
            return handler
        # torchrun refuses such a handler too.
        if handler.get_backend() != name:
            raise PluginError(
                f"{who} returned a handler that is named {handler.get_backend()!r}; the two names "
                "must be the same"
            )
        return BridgedRendezvous(who, handler)

    return create


class BridgedRendezvous(RendezvousHandler):
    """Adapts a rendezvous handler written for torchrun; raises plaunch's exceptions.

    It cannot wake the agent, which polls it for waiting nodes once per monitor interval.
    """

    def __init__(self, who: str, handler: Any) -> None:
        self._who = who
        self._handler = handler

    def __repr__(self) -> str:
        return f"BridgedRendezvous({self._handler!r})"

    def get_backend(self) -> str:
        """Return the name of the backend."""
        return str(self._handler.get_backend())

    @property
    def use_agent_store(self) -> bool:
        """Whether workers connect to a store that the agents host; often so with torch's."""
        return bool(self._handler.use_agent_store)

    @property
    def hosts_worker_store(self) -> bool:
        """The same as `use_agent_store`: under torchrun, the handler hosts that store."""
        return self.use_agent_store

    def next_rendezvous(self) -> RendezvousInfo:
        """Join the next round and return when it is complete."""
        with _translated(self._who):
            info = self._handler.next_rendezvous()
        try:
            store_info = info.bootstrap_store_info
            return RendezvousInfo(
                info.store,
                info.rank,
                info.world_size,
                RendezvousStoreInfo(store_info.master_addr, int(store_info.master_port)),
            )
        except AttributeError as error:
            raise PluginError(
                f"{self._who} returned {info!r} from next_rendezvous, which is not a "
                f"RendezvousInfo with a store address: {error}"
            ) from error

    def is_closed(self) -> bool:
        """Whether the rendezvous is closed for all nodes."""
        with _translated(self._who):
            return bool(self._handler.is_closed())

    def set_closed(self) -> None:
        """Close the rendezvous for all nodes."""
        with _translated(self._who):
            self._handler.set_closed()

    def num_nodes_waiting(self) -> int:
        """Return how many nodes wait to be admitted."""
        with _translated(self._who):
            return int(self._handler.num_nodes_waiting())

    def get_run_id(self) -> str:
        """Return the id of the job."""
        return str(self._handler.get_run_id())

    def shutdown(self) -> bool:
        """Release what the handler holds; torch's handlers also close the rendezvous for all."""
        with _translated(self._who):
            # torchrun ignores the result, so many handlers return None.
            return self._handler.shutdown() is not False

    def leave(self) -> bool:
        """Do nothing, as torchrun: `shutdown` would close the rendezvous for the other nodes."""
        return True


@contextlib.contextmanager
def _translated(who: str) -> Iterator[None]:
    """Convert torch's rendezvous exceptions to plaunch's."""
    try:
        yield
    except Exception as error:
        for base in type(error).__mro__:
            translation = _RENDEZVOUS_ERRORS.get(base.__name__)
            if translation is not None and base.__module__ == _RENDEZVOUS_API:
                raise translation(f"{who}: {one_line(error)}") from error
        raise
