"""Whether and how the workers of a node are bound to processors."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plaunch.agent.worker import WorkerSpec
    from plaunch.process.binding import Binder


def binder_of(spec: WorkerSpec) -> Binder | None:
    """What binds the workers, if they are to be bound; checks their devices in any case.

    A node that cannot start its workers says so before it joins the others.
    """
    if spec.numa_options is None and spec.devices is None and not spec.virtual_local_rank:
        return None
    from plaunch.devices import own_visibility, visibility_of  # noqa: PLC0415 - when asked for

    # Before each worker is shown its own device only: what they share depends on all of them.
    environ = {**os.environ, **visibility_of(spec.devices, os.environ)}
    if spec.virtual_local_rank:
        own_visibility(spec.local_world_size - 1, environ)
    if spec.numa_options is None:
        return None
    from plaunch.process.binding import Binder  # noqa: PLC0415 - binding only

    binder = Binder(spec.numa_options, environ=environ)
    binder.plan(spec.local_world_size)
    return binder
