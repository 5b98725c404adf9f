"""The built-in signal policies."""

from __future__ import annotations

from plaunch_signals.notify import NotifySignalPolicy
from plaunch_signals.torchrun import TorchrunSignalPolicy

__all__ = ["NotifySignalPolicy", "TorchrunSignalPolicy"]
