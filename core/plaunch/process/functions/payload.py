"""What multiprocessing sends to a worker that is a new interpreter."""

from __future__ import annotations

import io
from multiprocessing import reduction, spawn
from multiprocessing.context import set_spawning_popen
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess


def make_payload(popen: Any, process: BaseProcess) -> memoryview:
    """The preparation data and the pickled `process`, as `spawn` and `forkserver` read them.

    What pickling finds that the worker has to inherit is noted by `popen`, multiprocessing's own.
    """
    payload = io.BytesIO()
    set_spawning_popen(popen)
    try:
        reduction.dump(spawn.get_preparation_data(process.name), payload)
        reduction.dump(process, payload)
    finally:
        set_spawning_popen(None)
    return payload.getbuffer()
