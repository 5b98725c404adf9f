"""Bare things: what the names of their kinds give, without any hook."""

import signal

from plaunch.process import LogsDest, LogsSpecs, SignalAction
from plaunch.restarts import Decision, RestartAction
from plaunch.scheduling import Allocation


class AcmeLogsSpecs(LogsSpecs):
    @property
    def root_log_dir(self):
        return self._root_log_dir

    def reify(self, envs):
        return LogsDest(stdouts=dict.fromkeys(envs, ""), stderrs=dict.fromkeys(envs, ""))


class AcmeEventHandler:
    def __init__(self, context):
        self.context = context
        self.events = []

    def handle(self, event):
        self.events.append(event)

    def close(self):
        self.events.clear()


class AcmePolicy:
    def signals(self):
        return [signal.SIGTERM]

    def action(self, signum):
        return SignalAction.STOP


def create_policy(context):
    return AcmePolicy()


class AcmeRestartPolicy:
    def decide(self, failure, history):
        return Decision(RestartAction.STOP, "acme has no time")


def create_restart_policy(context):
    return AcmeRestartPolicy()


class AcmeHealthCheck:
    def check(self, occasion):
        return []


def create_health_check(context):
    return AcmeHealthCheck()


def find_allocation(environ):
    return Allocation()
