"""What the loop of an agent drives."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from plaunch.agent.forwarded_signals import ForwardedSignals
    from plaunch.agent.notifications import Notifier
    from plaunch.agent.peers import Peers
    from plaunch.agent.poller import Poller
    from plaunch.agent.preconditions import Preconditions
    from plaunch.agent.requests import Requests
    from plaunch.agent.results import Results
    from plaunch.agent.rounds import RoundJoiner
    from plaunch.agent.wait_reporter import WaitReporter
    from plaunch.agent.workers import Workers


class LoopComponents(NamedTuple):
    """The components of one run of an agent.

    Args:
        workers: the workers of this node.
        peers: the other nodes.
        joiner: joins rounds.
        preconditions: the health checks of this node.
        results: what has become of the workers.
        notifier: notifies listeners.
        forwarded: passes signals on to the workers.
        poller: waits, and is woken.
        reporter: shows what a round waits for.
        requests: what other threads request.
    """

    workers: Workers
    peers: Peers
    joiner: RoundJoiner
    preconditions: Preconditions
    results: Results
    notifier: Notifier
    forwarded: ForwardedSignals
    poller: Poller
    reporter: WaitReporter
    requests: Requests
