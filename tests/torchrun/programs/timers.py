"""LocalTimerServer and client: a timer that is released, and one that expires."""

import multiprocessing as mp
import time

from api import show, timer


def work(queue, seconds, limit):
    timer.configure(timer.LocalTimerClient(queue))
    with timer.expires(after=limit):
        time.sleep(seconds)


context = mp.get_context("fork")
queue = context.Queue()
server = timer.LocalTimerServer(queue, max_interval=0.05)
server.start()
workers = [context.Process(target=work, args=(queue, *args)) for args in ((0.1, 20), (30, 0.3))]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join(20)
server.stop()
show(codes=[worker.exitcode for worker in workers])
