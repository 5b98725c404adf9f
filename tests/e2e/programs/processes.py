"""Starts processes with all start methods of multiprocessing, and sends them its own objects."""

import multiprocessing
import os
import sys
from multiprocessing import shared_memory


class Thing:
    """Is pickled by the name of its class, in `__main__`."""

    def __init__(self, number):
        self.number = number


def double(thing):
    return Thing(2 * thing.number)


def answer(connection, name):
    memory = shared_memory.SharedMemory(name)
    memory.buf[0] += 1
    memory.close()
    connection.send((__name__, os.environ["RANK"], Thing(7)))


def run(method):
    context = multiprocessing.get_context(method)
    with context.Pool(2) as pool:
        doubled = [thing.number for thing in pool.map(double, map(Thing, range(3)))]
    here, there = context.Pipe()
    memory = shared_memory.SharedMemory(create=True, size=1)
    process = context.Process(target=answer, args=(there, memory.name))
    process.start()
    name, rank, thing = here.recv()
    process.join()
    shown = f"{doubled} {name} {rank} {thing.number} {memory.buf[0]} {process.exitcode}"
    memory.close()
    memory.unlink()
    return shown


if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        sys.stdout.write(f"{method}: {run(method)}\n")
