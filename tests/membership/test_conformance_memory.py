"""The store in memory, and the handler over it, do what every backend must do."""

from __future__ import annotations

import pytest
from plaunch_membership.handler import DynamicRendezvousHandler
from plaunch_membership.testing import MemoryBoard
from plaunch_testing.conformance import RendezvousConformance, RendezvousStoreConformance


class TestMemoryStore(RendezvousStoreConformance):
    @pytest.fixture(autouse=True)
    def _board(self):
        self.board = MemoryBoard()

    def connect(self):
        return self.board.connect()


class TestRendezvousOverMemory(RendezvousConformance):
    @pytest.fixture(autouse=True)
    def _board(self):
        self.board = MemoryBoard()

    def create(self, params):
        return DynamicRendezvousHandler(params, self.board.connect, address="127.0.0.1")
