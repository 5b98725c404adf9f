"""Handles of agents that a test plays."""

from __future__ import annotations

import json
import os


class PlayedHandle:
    """The handle of an agent whose streams a test writes."""

    address = ""

    def __init__(self, node="node0"):
        self.node = node
        self.stdout, self.out = os.pipe()
        self.stderr, self.err = os.pipe()
        for fd in (self.stdout, self.stderr):
            os.set_blocking(fd, False)
        self.code = None
        self.settings = {}
        self.is_stopped = False

    def write(self, data):
        self.settings = json.loads(data)

    def poll(self):
        return self.code

    def stop(self):
        self.is_stopped = True

    def close(self):
        for fd in (self.stdout, self.out, self.stderr, self.err):
            os.close(fd)
