"""The settings for binding workers; names and values are those of `torch.numa.binding`."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import cast

from plaunch.errors import UsageError


class AffinityMode(str, enum.Enum):
    """The CPUs to which a worker is bound.

    NODE: all CPUs of the NUMA node of the worker's device. SOCKET: the CPUs of all nodes of that
    socket. EXCLUSIVE: a share of the node's cores, which are divided among its devices.
    CORE_COMPLEX: the cores of one last-level cache of the node, in turn.
    """

    NODE = "node"
    SOCKET = "socket"
    EXCLUSIVE = "exclusive"
    CORE_COMPLEX = "core-complex"


@dataclass(frozen=True)
class NumaOptions:
    """How workers are bound to CPUs.

    Args:
        affinity_mode: the mode, or its value.
        should_fall_back_if_binding_fails: start a worker that cannot be bound unbound, with a
            warning, instead of failing.

    Raises:
        UsageError: there is no such mode.
    """

    affinity_mode: AffinityMode
    should_fall_back_if_binding_fails: bool = False

    def __post_init__(self) -> None:
        # It may also be torch's mode, or the value of a mode.
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
        """Convert an object of this class, of torch's class of this name, or the value of a mode.

        Raises:
            UsageError: it is another object, or has an unknown mode.
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
