"""Who asks an agent to stop, or to start again, and how urgently."""

from __future__ import annotations

import signal
from dataclasses import replace

from plaunch.agent.states import Event, Requested, RequestKind, State, StopRequested

# Seconds within which SIGTERM, SIGHUP and the like are one request, however many come: Slurm sends
# SIGTERM twice within milliseconds, systemd SIGTERM and SIGHUP.
SAME_REQUEST = 2.0
# The same for SIGINT: nobody presses Ctrl-C twice within it, but `timeout` sends every signal to
# the launcher and to its group.
SAME_INTERRUPT = 0.0005


def is_for_restart(event: Event) -> bool:
    """Whether a restart is requested."""
    return isinstance(event, Requested) and event.kind is RequestKind.RESTART


def asked(state: State, event: Event) -> State:
    """Remember who asked, and when: the first one to ask for the end."""
    if isinstance(event, Requested):
        return state if state.is_asked_to_end else replace(state, request=event)
    if state.asked_by is not None or not isinstance(event, StopRequested):
        return state
    return replace(state, asked_by=event.signum, asked_at=event.at)


def is_impatient(state: State, event: Event) -> bool:
    r"""Whether a signal that arrives during a stop means that the grace is not to be waited for.

    Whoever types Ctrl-C or Ctrl-\ at a launcher that stops wants it at once. What programs send
    (SIGTERM, SIGHUP and the like) comes more than once for one request.
    """
    if not isinstance(event, StopRequested):
        return False
    if event.signum is signal.SIGQUIT:
        return True
    if event.signum is signal.SIGINT:
        return state.asked_by is not signal.SIGINT or event.at - state.asked_at > SAME_INTERRUPT
    return state.asked_by is not None and event.at - state.asked_at > SAME_REQUEST
