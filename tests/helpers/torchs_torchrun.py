"""torch's torchrun, and other programs of torch's, also with a torch built without libuv."""

from __future__ import annotations

from helpers.machine_parts import find_missing

_OTHER_STORE = """
import torch.distributed as _distributed
def _replace_store(store):
    class TCPStore(store):
        def __init__(self, *args, **options):
            super().__init__(*args, **{"use_libuv": False, **options})
    _distributed.TCPStore = TCPStore
_replace_store(_distributed.TCPStore)
"""


def allow_any_store() -> str:
    """Return code to run before torchrun is imported; empty if its torch has libuv.

    torchrun creates its own stores with libuv, whatever USE_LIBUV says, and so does not start
    with a torch of Debian. Here these are of the other kind, as the stores that workers create
    are with USE_LIBUV=0.
    """
    return _OTHER_STORE if find_missing("libuv") else ""
