"""Two c10d handlers of a job: ranks, the store that they share, a barrier."""

import threading

from api import rendezvous, show, utils

endpoint = f"localhost:{utils.get_free_port()}"
infos = {}
handlers = [
    rendezvous.get_rendezvous_handler(
        rendezvous.RendezvousParameters("c10d", endpoint, "me", 2, 2, is_host=number == 0)
    )
    for number in range(2)
]


def join(number):
    infos[number] = handlers[number].next_rendezvous()


def on_all(function):
    threads = [threading.Thread(target=function, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)


on_all(join)
show(
    ranks=sorted(info.rank for info in infos.values()),
    worlds=[i.world_size for i in infos.values()],
)
got = {}


def meet(number):
    info = infos[number]
    got[info.rank] = utils.synchronize(info.store, b"data%d" % info.rank, info.rank, 2, "sync")
    utils.barrier(info.store, 2, "here", 20)


on_all(meet)
show(got=sorted(one.decode() for one in got[1]))
for handler in handlers:
    handler.set_closed()
