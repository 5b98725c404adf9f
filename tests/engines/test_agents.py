"""`ConnectedNode` is one node of a job, as the command sees it."""

import os

from plaunch_engines.agents import AgentState, ConnectedNode

from helpers.clock import Clock


class EndedHandle:
    """An agent that has ended, whose streams are held open by another process."""

    node = "node0"
    address = ""

    def __init__(self):
        self.stdout, self._out = os.pipe()
        self.stderr, self._err = os.pipe()

    def poll(self):
        return 0

    def close(self):
        for fd in (self.stdout, self._out, self.stderr, self._err):
            os.close(fd)


def test_output_that_may_not_be_read_yet_is_not_lost():
    clock = Clock()
    handle = EndedHandle()
    node = ConnectedNode(0, handle, 60.0, clock)
    node.update(is_read=True)
    for _ in range(5):
        clock.now += 10.0
        node.update(is_read=False)  # a slow reader
    clock.now += 1.0
    node.update(is_read=True)
    assert node.state is not AgentState.ENDED
    assert node.fds() == [handle.stdout, handle.stderr]
    clock.now += 1.5
    node.update(is_read=True)
    assert node.state is AgentState.ENDED
    node.close()
