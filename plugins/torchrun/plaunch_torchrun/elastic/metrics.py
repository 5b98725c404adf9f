"""Numbers about a launch, and where they go."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from plaunch.metrics import DEFAULT_GROUP, F
from plaunch.metrics import MetricData as MetricData
from plaunch.metrics import MetricHandler as MetricHandler
from plaunch.metrics import MetricStream as MetricStream
from plaunch.metrics import NullMetricHandler as NullMetricHandler
from plaunch.metrics import configure as configure
from plaunch.metrics import get_elapsed_time_ms as get_elapsed_time_ms
from plaunch.metrics import getStream as getStream
from plaunch.metrics import prof as prof
from plaunch.metrics import put_metric as put_metric

if TYPE_CHECKING:
    from collections.abc import Callable


class MetricsConfig:
    """Settings by name, for `initialize_metrics`."""

    __slots__ = ("params",)

    def __init__(self, params: dict[str, str] | None = None) -> None:
        self.params = {} if params is None else params


class ConsoleMetricHandler(MetricHandler):
    """Prints each number on a line of stdout."""

    def emit(self, metric_data: MetricData) -> None:
        """Print it."""
        when, group, name, value = metric_data
        print(f"[{when}][{group}]: {name}={value}")


def initialize_metrics(cfg: MetricsConfig | None = None) -> None:
    """Do nothing, as in torchrun: a place to replace where a site configures all its programs."""
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
