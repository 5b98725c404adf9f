"""get_all, synchronize and barrier over a store, and time-outs."""

import threading
from datetime import timedelta

import torch.distributed as dist
from api import caught, show, utils

store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
for rank in range(2):
    store.set(f"all{rank}", f"v{rank}")
got = {}
threads = [
    threading.Thread(
        target=lambda r=rank: got.update(
            {r: utils.get_all(dist.TCPStore("localhost", store.port), r, "all", 2)}
        )
    )
    for rank in range(2)
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(20)
show(got=[[v.decode() for v in got[r]] for r in range(2)])
show(alone=[v.decode() for v in utils.synchronize(store, b"x", 0, 1, "alone", 5)])
before = store.timeout
show(barrier=caught(utils.barrier, store, 2, "late", 0.3) is not None, kept=store.timeout == before)
with utils.store_timeout(store, 7):
    show(inside=store.timeout == timedelta(seconds=7))
