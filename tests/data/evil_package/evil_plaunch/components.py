"""What goes wrong in components that are selected by name."""

import os
import signal
import threading

from plaunch.process import LogsDest, LogsSpecs, SignalAction

from evil_plaunch.hooks import stand

FOR_EVER = threading.Event()


def count_two():
    return 2


def count_ignoring_children():
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    return 1


def count_and_exit():
    os._exit(9)


class StandingPolicy:
    def __init__(self, context):
        pass

    def signals(self):
        return [signal.SIGTERM]

    def action(self, signum):
        FOR_EVER.wait()
        return SignalAction.IGNORE


class StandingLogs(LogsSpecs):
    @property
    def root_log_dir(self):
        return None

    def reify(self, envs):
        stand()
        return LogsDest()


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
