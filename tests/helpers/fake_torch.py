"""A fake torch that loads at once, has only a store, and can simulate faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# The server tells each client how it was loaded. `FAKE` selects the simulated fault.
STORE = """\
import os, socket, threading
HOW = []
class TCPStore:
    def __init__(self, host, port, *, is_master, wait_for_workers, timeout, **options):
        fake = os.environ.get("FAKE", "")
        if fake == "dies":
            raise RuntimeError("this torch has no server")
        if fake == "old" and "master_listen_fd" in options:
            raise TypeError("no such argument: master_listen_fd")
        if fake == "no libuv" and options.get("use_libuv", True):
            raise RuntimeError("use_libuv was requested but PyTorch was built without libuv")
        if "master_listen_fd" in options:
            self.listener = socket.socket(fileno=options["master_listen_fd"])
        else:
            self.listener = socket.create_server((host, port))
        self.listener.setblocking(True)
        threading.Thread(target=self.serve, daemon=True).start()
    def serve(self):
        self.guests = []
        while True:
            guest, _ = self.listener.accept()
            guest.sendall(HOW[0].encode())
            self.guests.append(guest)
"""
NATIVE = """\
import os, sys, time
def _c10d_init():
    if os.environ.get("FAKE") == "aborts":
        os.abort()
    if os.environ.get("FAKE") == "hangs":
        time.sleep(600)
    sys.path.insert(0, os.path.dirname(__file__))
    import the_store
    the_store.HOW.append("lean")
    sys.modules["torch._C._distributed_c10d"] = the_store
"""
WHOLE = """\
import os, sys
sys.path.insert(0, os.path.dirname(os.path.dirname(__file__)))
from the_store import HOW, TCPStore
HOW.append("whole")
"""


def write_fake_torch(folder: Path) -> Path:
    """Write the package to `folder`, for PYTHONPATH."""
    for name, text in {
        "torch/__init__.py": "",
        "torch/_C.py": NATIVE,
        "torch/the_store.py": STORE,
        "torch/distributed/__init__.py": WHOLE,
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
