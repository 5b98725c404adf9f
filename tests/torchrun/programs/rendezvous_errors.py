"""Which rendezvous errors derive from which, RendezvousInfo and RendezvousStoreInfo."""

from api import rendezvous, show

names = ("Closed", "Timeout", "Connection", "State", "GracefulExit")
for name in names:
    show(
        **{
            name: issubclass(
                getattr(rendezvous, f"Rendezvous{name}Error"), rendezvous.RendezvousError
            )
        }
    )
where = rendezvous.RendezvousStoreInfo("host", 1)
info = rendezvous.RendezvousInfo("store", 2, 3, where)
show(info=[info.store, info.rank, info.world_size, info.bootstrap_store_info == where])
show(keys=[where.MASTER_ADDR_KEY, where.MASTER_PORT_KEY, where.master_addr, where.master_port])
show(
    exception=issubclass(rendezvous.RendezvousError, Exception),
    system=issubclass(rendezvous.RendezvousGracefulExitError, SystemExit),
)
