"""What goes wrong in components that are selected by name."""

import os
import signal
import sys
import threading

from plaunch.process import LogsDest, LogsSpecs, SignalAction
from plaunch.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from evil_plaunch.hooks import stand

FOR_EVER = threading.Event()


def count_two():
    return 2


def count_ignoring_children():
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    return 1


def count_and_leave():
    sys.exit(0)


def count_and_leave_a_message():
    sys.exit("the driver is broken")


def return_nothing(*args, **kwargs):
    return None


def leave(*args, **kwargs):
    sys.exit(0)


class LeavingPolicy:
    def __init__(self, context):
        pass

    def signals(self):
        return [signal.SIGTERM]

    def action(self, signum):
        sys.exit(0)


class LeavingLogs(LogsSpecs):
    @property
    def root_log_dir(self):
        return None

    def reify(self, envs):
        sys.exit(0)


class LeavingHandler(RendezvousHandler):
    """A plain handler one method of which leaves."""

    def __init__(self, params):
        self._params = params

    def get_backend(self):
        return self._params.backend

    def get_run_id(self):
        return self._params.run_id

    def next_rendezvous(self):
        self._leave("next_rendezvous")
        return RendezvousInfo(None, 0, 1, RendezvousStoreInfo("127.0.0.1", 1))

    def is_closed(self):
        return False

    def set_closed(self):
        pass

    def num_nodes_waiting(self):
        self._leave("num_nodes_waiting")
        return 0

    def shutdown(self):
        self._leave("shutdown")
        return True

    def _leave(self, place):
        if place == os.environ["EVIL_PLACE"]:
            sys.exit(0)


class StandingPolicy:
    def __init__(self, context):
        pass

    def signals(self):
        return [signal.SIGTERM]

    def action(self, signum):
        FOR_EVER.wait()
        return SignalAction.IGNORE


class LogsThatFailToClose(LogsSpecs):
    @property
    def root_log_dir(self):
        return None

    def reify(self, envs):
        return LogsDest({0: ""}, {0: ""}, {}, {}, {0: ""})

    def close(self, succeeded):
        print(f"evil: close {succeeded}")
        raise ValueError("no such folder")


class StandingLogs(LogsSpecs):
    """A logs spec one method of which never returns."""

    @property
    def root_log_dir(self):
        return None

    def reify(self, envs):
        self._stand("reify")
        return LogsDest({0: ""}, {0: ""}, {}, {}, {0: ""})

    def open_sink(self, local_rank, stream):
        self._stand("open_sink")

    def open_streams(self, dest, nprocs, **options):
        self._stand("open_streams")
        return super().open_streams(dest, nprocs, **options)

    def _stand(self, place):
        if place == os.environ["EVIL_PLACE"]:
            stand()


class FailingLogs(LogsSpecs):
    @property
    def root_log_dir(self):
        return None

    def reify(self, envs):
        raise ValueError("no such thing")


class AwayOnce:
    """Its server is away for the first event."""

    def __init__(self, context):
        self.path = os.environ["EVIL_EVENTS"]
        self.is_first = True

    def handle(self, event):
        print("evil: print in handle", flush=True)
        if self.is_first:
            self.is_first = False
            raise ConnectionError("no route to host")
        with open(self.path, "a") as file:
            file.write(f"{event.name}\n")

    def close(self):
        pass
