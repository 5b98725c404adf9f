"""Bridges for plugins that were written for torchrun: its two entry-point groups work unchanged.

Such plugins import torch themselves and expect torch's own types, so they are handed those. What
they return is read by attribute.
"""

from __future__ import annotations

import contextlib
import os
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
from plaunch.process import LogsDest, LogsSpecs, Std
from plaunch.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from plaunch.plugin import RendezvousFactory

_PROCESS_API = "torch.distributed.elastic.multiprocessing.api"
_RENDEZVOUS_API = "torch.distributed.elastic.rendezvous.api"

# What torchrun puts among the options of every backend when the user does not, in seconds.
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
    """A logs spec class of plaunch's that uses `thing`, a class derived from torch's `LogsSpecs`.

    None if `thing` is something else. torch is not imported: who derives from it has done so.
    """
    if not isinstance(thing, type):
        return None
    for base in thing.__mro__:
        if (base.__module__, base.__name__) == (_PROCESS_API, "LogsSpecs"):
            return _bridged_class(thing, sys.modules[_PROCESS_API].Std)
    return None


class TorchLogsSpecs(LogsSpecs):
    """Where an object of torch's `LogsSpecs` lets streams go.

    Args:
        specs: that object.
        settings: what `LogsSpecs` is made with, if it is known.
    """

    def __init__(self, specs: Any, *settings: Any) -> None:
        super().__init__(*settings)
        self._specs = specs
        if hasattr(specs, "open_sink"):  # which torchrun does not call
            self.open_sink = specs.open_sink  # type: ignore[method-assign]

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Ask the object, and read its answer by attribute."""
        return _read_dest(self._specs.reify(envs))

    @property
    def root_log_dir(self) -> str | None:
        """The object's, as text."""
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


def _read_dest(dest: Any) -> LogsDest:
    """Torch's `LogsDest` as plaunch's."""
    return LogsDest(
        stdouts=_paths(dest.stdouts),
        stderrs=_paths(dest.stderrs),
        tee_stdouts=_teed(dest.tee_stdouts),
        tee_stderrs=_teed(dest.tee_stderrs),
        error_files=_paths(dest.error_files),
        # The last two came to torch later than the rest.
        filtered_stdout=os.fspath(getattr(dest, "filtered_stdout", None) or ""),
        filtered_stderr=os.fspath(getattr(dest, "filtered_stderr", None) or ""),
    )


def _teed(paths: Mapping[int, Any]) -> dict[int, str]:
    """The streams to tee; torch names `/dev/null` for every rank when there are no files."""
    told = _paths({rank: path for rank, path in paths.items() if path is not None})
    return {rank: path for rank, path in told.items() if path != os.devnull}


def _paths(paths: Mapping[int, Any]) -> dict[int, str]:
    """Paths of any kind as text; None is the empty string, for torch opens no file for either."""
    return {rank: "" if path is None else os.fspath(path) for rank, path in paths.items()}


# --- rendezvous -----------------------------------------------------------------------------------


def bridge_creator(who: str, name: str, get_creator: Any) -> RendezvousFactory:
    """A rendezvous factory of plaunch's from a value of torchrun's entry-point group.

    Args:
        who: how messages call the plugin.
        name: the backend's name, without the distribution that the user may have put before it.
        get_creator: the value: called once, here, without arguments, it returns torchrun's
            creator. Whatever it raises is not caught.
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
                raise UsageError(f"{who} does not take its parameters: {error}") from error
        if isinstance(handler, RendezvousHandler):
            return handler
        # torchrun refuses such a handler as well.
        if handler.get_backend() != name:
            raise PluginError(
                f"{who} returned a handler that is named {handler.get_backend()!r}; the two names "
                "must be the same"
            )
        return BridgedRendezvous(who, handler)

    return create


class BridgedRendezvous(RendezvousHandler):
    """A rendezvous handler that was written for torchrun, with plaunch's exceptions.

    It cannot wake the agent, which asks it for waiting nodes once per monitor interval.
    """

    def __init__(self, who: str, handler: Any) -> None:
        self._who = who
        self._handler = handler

    def __repr__(self) -> str:
        return f"BridgedRendezvous({self._handler!r})"

    def get_backend(self) -> str:
        """The name of the backend."""
        return str(self._handler.get_backend())

    @property
    def use_agent_store(self) -> bool:
        """Whether workers connect to a store that the agents host; often so with torch's."""
        return bool(self._handler.use_agent_store)

    @property
    def hosts_worker_store(self) -> bool:
        """The same: under torchrun, a store that the agents host is the handler's own."""
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
        """How many nodes wait to be admitted."""
        with _translated(self._who):
            return int(self._handler.num_nodes_waiting())

    def get_run_id(self) -> str:
        """The id of the job."""
        return str(self._handler.get_run_id())

    def shutdown(self) -> bool:
        """Release what the handler holds; torch's handlers also close the rendezvous for all."""
        with _translated(self._who):
            # torchrun does not look at the answer, so that many handlers give none.
            return self._handler.shutdown() is not False

    def leave(self) -> bool:
        """Do nothing, as torchrun: `shutdown` would close the rendezvous for the other nodes."""
        return True


@contextlib.contextmanager
def _translated(who: str) -> Iterator[None]:
    """Raise torch's rendezvous exceptions as plaunch's; all others pass."""
    try:
        yield
    except Exception as error:
        for base in type(error).__mro__:
            translation = _RENDEZVOUS_ERRORS.get(base.__name__)
            if translation is not None and base.__module__ == _RENDEZVOUS_API:
                raise translation(f"{who}: {one_line(error)}") from error
        raise
