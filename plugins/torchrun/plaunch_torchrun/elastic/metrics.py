"""Metrics of a launch, and their handlers.

A program that launches in code selects the handler with `configure`; by default there is none. The
metrics of a launch are in the group `torchelastic`: see `plaunch_torchrun.measures`.
"""

from __future__ import annotations

import abc
import functools
import logging
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")

DEFAULT_GROUP = "torchelastic"
_TORCH = "torch.distributed.elastic.metrics.api"
# The outcomes for which torchrun counts the agent as succeeded: it came to a result.
CAME_TO_A_RESULT = frozenset({"succeeded", "failed", "not_needed"})


class MetricData(NamedTuple):
    """One number: when it was measured (seconds since the epoch), its group, name and value."""

    timestamp: float
    group_name: str
    name: str
    value: float


class MetricHandler(abc.ABC):
    """Receives metrics; subclasses implement `emit`."""

    @abc.abstractmethod
    def emit(self, metric_data: MetricData) -> None:
        """Handle one metric; called on the thread that measured it, which it blocks."""


class NullMetricHandler(MetricHandler):
    """Drops all numbers."""

    def emit(self, metric_data: MetricData) -> None:
        """Drop it."""


class ConsoleMetricHandler(MetricHandler):
    """Prints each number on a line of stdout."""

    def emit(self, metric_data: MetricData) -> None:
        """Print it."""
        when, group, name, value = metric_data
        print(f"[{when}][{group}]: {name}={value}")


class MetricStream:
    """A group, and the handler that takes its numbers."""

    def __init__(self, group_name: str, handler: MetricHandler) -> None:
        self.group_name = group_name
        self.handler = handler

    def add_value(self, metric_name: str, metric_value: float) -> None:
        """Pass a metric to the handler; exceptions of the handler are logged."""
        try:
            self.handler.emit(MetricData(time.time(), self.group_name, metric_name, metric_value))
        except Exception as error:  # noqa: BLE001 - a handler may raise anything
            _HANDLERS.report(self.handler, error)


class _Handlers:
    """The handlers for the metrics of this process."""

    def __init__(self) -> None:
        self.by_group: dict[str, MetricHandler] = {}
        self.default: MetricHandler = NullMetricHandler()
        self._failed: list[MetricHandler] = []

    def report(self, handler: MetricHandler, error: Exception) -> None:
        """Log that a handler fails, once."""
        if not any(handler is failed for failed in self._failed):
            self._failed.append(handler)
            logging.getLogger("plaunch").warning("metric handler %r fails: %r", handler, error)


_HANDLERS = _Handlers()  # one per process, as in torchrun's API


def configure(handler: MetricHandler, group: str | None = None) -> None:
    """Set the handler of `group`, or the default one for groups without their own.

    It applies to the whole process, until the next call.
    """
    if group is None:
        _HANDLERS.default = handler
    else:
        _HANDLERS.by_group[group] = handler


def is_configured() -> bool:
    """Whether a handler is configured, here or in torch's module of this name."""
    if _HANDLERS.by_group or not isinstance(_HANDLERS.default, NullMetricHandler):
        return True
    torch_metrics = sys.modules.get(_TORCH)
    if torch_metrics is None:
        return False
    default = getattr(torch_metrics, "_default_metrics_handler", None)
    null = getattr(torch_metrics, "NullMetricHandler", type(None))
    return bool(getattr(torch_metrics, "_metrics_map", None)) or not isinstance(default, null)


def configure_metrics(params: dict[str, str]) -> None:
    """Call torch's `initialize_metrics`, which a site may have replaced, as its launcher does.

    It does nothing if torch's package is not imported.

    Args:
        params: the field `metrics_cfg` of the configuration of the launch.
    """
    torch_metrics = sys.modules.get(_TORCH.rpartition(".")[0])
    initialize = getattr(torch_metrics, "initialize_metrics", None)
    if torch_metrics is not None and initialize is not None:
        initialize(torch_metrics.MetricsConfig(params))


def getStream(group: str) -> MetricStream:  # noqa: N802 - the name is torchrun's
    """Create the stream of `group`, with its current handler."""
    return MetricStream(group, _HANDLERS.by_group.get(group, _HANDLERS.default))


def put_metric(metric_name: str, metric_value: float, metric_group: str = DEFAULT_GROUP) -> None:
    """Report one metric, also to the handlers that are configured in torch's module."""
    getStream(metric_group).add_value(metric_name, metric_value)
    torch_metrics = sys.modules.get(_TORCH)
    if torch_metrics is not None and hasattr(torch_metrics, "getStream"):
        stream = torch_metrics.getStream(metric_group)
        try:
            stream.add_value(metric_name, metric_value)
        except Exception as error:  # noqa: BLE001 - a handler may raise anything
            _HANDLERS.report(stream.handler, error)


def get_elapsed_time_ms(start_time_in_seconds: float) -> int:
    """Whole milliseconds since `start_time_in_seconds`, a value of `time.time()`."""
    return int((time.time() - start_time_in_seconds) * 1000)


@overload
def prof(fn: F, group: str = DEFAULT_GROUP, *, name: str = "") -> F: ...
@overload
def prof(fn: None = None, group: str = DEFAULT_GROUP, *, name: str = "") -> Callable[[F], F]: ...
def prof(
    fn: F | None = None, group: str = DEFAULT_GROUP, *, name: str = ""
) -> F | Callable[[F], F]:
    """Report how each call of a function ends, and how long it takes in milliseconds.

    The names are `<name>.success`, `.failure` and `.duration.ms`, where `name` is by default
    `<Class>.<function>`; a function outside of a class has the last part of its module's name
    before it. Used with or without arguments.
    """

    def decorate(function: F) -> F:
        if name:
            return _measured(function, name, group)
        outer, _, _ = function.__qualname__.rpartition(".")
        module = (function.__module__ or "").rpartition(".")[2]
        parts = [function.__qualname__] if outer else [module, function.__qualname__]
        return _measured(function, ".".join(filter(None, parts)), group)

    return decorate if fn is None else decorate(fn)


def _measured(function: F, name: str, group: str) -> F:
    @functools.wraps(function)
    def measured(*args: Any, **kwargs: Any) -> Any:
        began = time.time()
        outcome = "failure"
        try:
            result = function(*args, **kwargs)
            outcome = "success"
            return result
        finally:
            put_metric(f"{name}.{outcome}", 1, group)
            put_metric(f"{name}.duration.ms", get_elapsed_time_ms(began), group)

    return measured  # type: ignore[return-value]


class MetricsConfig:
    """Settings by name, for `initialize_metrics`."""

    __slots__ = ("params",)

    def __init__(self, params: dict[str, str] | None = None) -> None:
        self.params = {} if params is None else params


def initialize_metrics(cfg: MetricsConfig | None = None) -> None:
    """Do nothing, as in torchrun; a site may replace it to configure all its programs."""
    del cfg


def publish_metric(metric_group: str, metric_name: str, metric_value: float) -> None:
    """`put_metric` with the group first; deprecated, as in torchrun."""
    _warn_deprecated("publish_metric", "put_metric")
    getStream(metric_group).add_value(metric_name, metric_value)


def profile(group: str = DEFAULT_GROUP) -> Callable[[F], F]:
    """`prof` with names that are just the function's; deprecated, as in torchrun."""
    _warn_deprecated("profile", "prof")
    return lambda function: prof(group=group, name=function.__name__)(function)


def _warn_deprecated(name: str, instead: str) -> None:
    warnings.warn(f"{name} is deprecated; use {instead}", FutureWarning, stacklevel=3)
