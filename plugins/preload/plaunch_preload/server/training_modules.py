"""Modules that a training step imports after a preloaded one.

`python tools/docs/training_imports.py` finds them.
"""

from __future__ import annotations

# By the module that is preloaded. Not every version has all of them.
TRAINING_MODULES = {
    "torch": (
        "multiprocessing.popen_fork",
        "multiprocessing.popen_forkserver",
        "multiprocessing.queues",
        "multiprocessing.synchronize",
        "torch._dynamo",
        "torch.profiler._cupti_monitor",
        "torch.utils._sympy.reference",
        "torch.utils.serialization",
    ),
}
