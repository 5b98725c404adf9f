"""What keeps a process from ending, and from being ended."""

import atexit
import concurrent.futures
import multiprocessing
import os
import threading
import time

from plaunch.plugin import hookimpl

FOR_EVER = threading.Event()


def sleep():
    """Sleep until somebody says so, but not for ever."""
    until = time.monotonic() + 60
    while not os.path.exists(os.environ["EVIL_ENDS"]) and time.monotonic() < until:
        time.sleep(0.05)


class LeavesAThread:
    @hookimpl
    def plaunch_workers_started(self):
        threading.Thread(target=FOR_EVER.wait, name="uploader", daemon=False).start()


class LeavesAPool:
    """A pool that nobody shuts down ends with the interpreter, in good order."""

    @hookimpl
    def plaunch_workers_started(self):
        self.pool = concurrent.futures.ThreadPoolExecutor()
        self.pool.submit(time.monotonic).result()


class LeavesAChild:
    @hookimpl
    def plaunch_agent_finished(self):
        context = multiprocessing.get_context("fork")
        context.Process(target=sleep, name="helper").start()


class HangsAtExit:
    def __init__(self):
        atexit.register(FOR_EVER.wait)

    @hookimpl
    def plaunch_workers_started(self):
        pass
