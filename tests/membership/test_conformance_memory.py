"""The store in memory and the handler over it pass the conformance suites of backends."""

from __future__ import annotations

import pytest
from plaunch_membership import DynamicRendezvousHandler, StoreAccess
from plaunch_membership.testing import MemoryBoard
from plaunch_testing.conformance import RendezvousConformance, RendezvousStoreConformance


class OnABoard:
    @pytest.fixture(autouse=True)
    def _board(self):
        self.board = MemoryBoard()


class TestMemoryStore(OnABoard, RendezvousStoreConformance):
    def connect(self):
        return self.board.connect()


class TestRendezvousOverMemory(OnABoard, RendezvousConformance):
    def create(self, params):
        return DynamicRendezvousHandler(params, StoreAccess(self.board.connect, "127.0.0.1"))
