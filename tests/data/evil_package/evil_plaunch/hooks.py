"""What goes wrong in hooks."""

import ctypes
import os
import signal
import threading

from plaunch.plugin import hookimpl

FOR_EVER = threading.Event()


def stand():
    """Never return; say that it has begun."""
    if "EVIL_STANDS" in os.environ:
        with open(os.environ["EVIL_STANDS"], "w"):
            pass
    FOR_EVER.wait()


class StandsBeforeRendezvous:
    @hookimpl
    def plaunch_before_rendezvous(self):
        stand()


class StandsWhenStarted:
    @hookimpl
    def plaunch_workers_started(self):
        stand()


class StandsAtTheEnd:
    @hookimpl
    def plaunch_agent_finished(self):
        stand()


class StandsInWorkerEnv:
    @hookimpl
    def plaunch_worker_env(self):
        stand()


class StandsInABinder:
    @hookimpl
    def plaunch_worker_binder(self):
        return self

    def plan(self, nprocs):
        self.plan = lambda nprocs: stand()  # the first call is made before the node joins
        return {}

    def environment(self, local_rank, environ):
        stand()


class StandsInAStore:
    @hookimpl
    def plaunch_worker_store(self):
        return lambda store_round: stand()


class StandsInARestart:
    is_first = True

    @hookimpl
    def plaunch_worker_env(self):
        if not self.is_first:
            stand()
        self.is_first = False


class FailsWhenStarted:
    @hookimpl
    def plaunch_workers_started(self):
        raise ValueError("no such thing")


class FailsInWorkerEnv:
    @hookimpl
    def plaunch_worker_env(self):
        raise ValueError("no such thing")


class IgnoresChildren:
    @hookimpl
    def plaunch_workers_started(self):
        # Not signal.signal, which works on the main thread only.
        ctypes.CDLL(None).signal(signal.SIGCHLD, ctypes.c_void_p(1))


class PrintsWhenStarted:
    @hookimpl
    def plaunch_workers_started(self):
        print("evil: print", flush=True)
