"""A c10d handler: rounds, store, closing and shutdown."""

from api import caught, rendezvous, show, utils

params = rendezvous.RendezvousParameters(
    "c10d", f"localhost:{utils.get_free_port()}", "me", 1, 1, local_addr="127.0.0.1"
)
handler = rendezvous.get_rendezvous_handler(params)
show(backend=handler.get_backend(), id=handler.get_run_id(), closed=handler.is_closed())
info = handler.next_rendezvous()
show(rank=info.rank, world=info.world_size, store=type(info.store).__name__)
info.store.set("key", "value")
show(
    value=info.store.get("key").decode(), added=info.store.add("n", 2), has=info.store.check(["no"])
)
show(address=info.bootstrap_store_info.master_addr, waiting=handler.num_nodes_waiting())
again = handler.next_rendezvous()
show(again=again.rank, other=not again.store.check(["key"]))
handler.set_closed()
show(is_closed=handler.is_closed(), joins=caught(handler.next_rendezvous))
show(shutdown=handler.shutdown(), twice=handler.shutdown())
