"""A restart policy with fixed decisions."""

from __future__ import annotations

from plaunch.restarts import Decision, RestartAction


class Policy:
    """Returns these decisions in turn, and records its calls."""

    def __init__(self, *decisions):
        self.decisions, self.asked = list(decisions), []

    def decide(self, failure, history):
        self.asked.append((failure, history))
        return self.decisions.pop(0)


def restart(**options):
    return Decision(RestartAction.RESTART, **options)


def stop(reason):
    return Decision(RestartAction.STOP, reason)
