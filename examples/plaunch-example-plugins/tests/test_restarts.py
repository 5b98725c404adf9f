from __future__ import annotations

from plaunch.plugin import PluginContext
from plaunch.restarts import Cause, Decided, Decision, Failure, RestartAction
from plaunch_example_plugins.restarts import BrokenDevicePolicy


def policy(max_restarts=1):
    context = PluginContext("job", "default", "alpha", settings={"max_restarts": max_restarts})
    return BrokenDevicePolicy(context)


def failure(exitcode):
    return Failure(Cause.WORKER, 3, "beta", exitcode)


def test_a_node_with_a_broken_device_is_excluded():
    found = policy(max_restarts=0).decide(failure(75), [])
    assert (found.action, found.without, found.costs) == (RestartAction.RESTART, ["beta"], False)
    assert found.reason == "restart: a device of beta is broken, says rank 3"


def test_other_failures_use_restarts():
    free = Decided(failure(75), Decision(RestartAction.RESTART, costs=False))
    found = policy().decide(failure(1), [free])
    assert (found.action, found.reason) == (RestartAction.RESTART, "restart 1 of 1")
    found = policy().decide(failure(1), [free, Decided(failure(1), found)])
    assert (found.action, found.reason) == (RestartAction.STOP, "1 restarts did not help")
