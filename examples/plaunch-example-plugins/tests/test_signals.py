from __future__ import annotations

import signal

from plaunch.plugin import PluginContext
from plaunch.process import SignalAction
from plaunch_example_plugins.signals import Usr1StopsPolicy


def test_usr1_and_the_listed_signals_stop_the_job():
    context = PluginContext(
        run_id="job", role="default", host="alpha", settings={"signals_to_handle": "SIGTERM"}
    )
    policy = Usr1StopsPolicy(context)
    assert set(policy.signals()) == {signal.SIGUSR1, signal.SIGTERM}
    assert policy.action(signal.SIGUSR1) is SignalAction.STOP
