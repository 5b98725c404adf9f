"""What tests of plugins need with the core alone: fakes, and a plugin manager of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.lazy import attach

if TYPE_CHECKING:
    from plaunch.testing.job_rendezvous import FakeJobRendezvous as FakeJobRendezvous
    from plaunch.testing.plugins import plugin_manager as plugin_manager
    from plaunch.testing.rendezvous import FakeElasticRendezvous as FakeElasticRendezvous
    from plaunch.testing.rendezvous import FakeRendezvous as FakeRendezvous

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        ".job_rendezvous": "FakeJobRendezvous",
        ".plugins": "plugin_manager",
        ".rendezvous": "FakeElasticRendezvous FakeRendezvous",
    },
)
