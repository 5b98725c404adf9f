"""A static handler: rounds and store."""

from api import rendezvous, show, utils

port = utils.get_free_port()
params = rendezvous.RendezvousParameters(
    "static", f"127.0.0.1:{port}", "me", 1, 1, rank=0, timeout=20
)
handler = rendezvous.get_rendezvous_handler(params)
info = handler.next_rendezvous()
show(rank=info.rank, world=info.world_size, store=type(info.store).__name__)
info.store.set("key", "value")
again = handler.next_rendezvous()
show(value=again.store.get("key").decode(), deleted=again.store.delete_key("key"))
where = info.bootstrap_store_info
show(same=(where.master_addr, where.master_port) == ("127.0.0.1", port))
show(waiting=handler.num_nodes_waiting(), agent=handler.use_agent_store)
handler.set_closed()
show(closed=handler.is_closed(), shutdown=handler.shutdown())
