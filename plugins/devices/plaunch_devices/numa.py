"""The settings for binding workers; names and values are `torch.numa.binding`'s."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import cast

from plaunch.errors import UsageError


class AffinityMode(str, enum.Enum):
    """Which processors a worker is bound to.

    NODE has all processors of the NUMA node that the worker's device is on, SOCKET those of all
    nodes of that socket. EXCLUSIVE divides the node's cores among the devices on it, and
    CORE_COMPLEX gives each device the cores of one last-level cache of the node, in turn.
    """

    NODE = "node"
    SOCKET = "socket"
    EXCLUSIVE = "exclusive"
    CORE_COMPLEX = "core-complex"


@dataclass(frozen=True)
class NumaOptions:
    """How workers are bound to processors.

    Args:
        affinity_mode: the mode, or its value.
        should_fall_back_if_binding_fails: start a worker that cannot be bound without binding it,
            with a warning, instead of failing.

    Raises:
        UsageError: there is no such mode.
    """

    affinity_mode: AffinityMode
    should_fall_back_if_binding_fails: bool = False

    def __post_init__(self) -> None:
        # A mode may also be torch's, or its value.
        value = getattr(self.affinity_mode, "value", self.affinity_mode)
        try:
            object.__setattr__(self, "affinity_mode", AffinityMode(value))
        except ValueError:
            raise UsageError(
                f"affinity mode {value!r} is unknown (--numa-binding); choices: "
                f"{', '.join(sorted(mode.value for mode in AffinityMode))}"
            ) from None

    @classmethod
    def of(cls, options: object) -> NumaOptions:
        """These options, from an object of this class, of torch's class of the name, or a mode.

        Raises:
            UsageError: it is something else, or has no known mode.
        """
        if isinstance(options, cls):
            return options
        if isinstance(options, str):
            return cls(cast("AffinityMode", options))
        mode = getattr(options, "affinity_mode", None)
        if mode is None:
            raise UsageError(
                f"numa_options is {options!r}; give NumaOptions(affinity_mode=AffinityMode.NODE)"
            )
        may_fall_back = getattr(options, "should_fall_back_if_binding_fails", False)
        return cls(mode, bool(may_fall_back))
