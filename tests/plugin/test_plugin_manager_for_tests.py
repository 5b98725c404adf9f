"""`plaunch.testing.plugin_manager`: a fresh manager that nothing from outside reaches."""

from __future__ import annotations

from plaunch.plugin.kinds import DEVICE_COUNTS, LOGS_SPECS
from plaunch.testing import plugin_manager


def test_it_sees_nothing_else_that_is_installed(site, monkeypatch) -> None:
    site.install("acme", {"plaunch.device_counts": {"mine": "mod:count"}})
    site.install("beta", {"plaunch.plugins": {"beta": "no_such_module"}})
    assert plugin_manager().names(DEVICE_COUNTS) == ["auto", "cpu", "gpu", "xpu"]
    assert plugin_manager().names(LOGS_SPECS) == ["default"]


def test_the_environment_of_the_test_run_has_no_influence(monkeypatch) -> None:
    monkeypatch.setenv("PLAUNCH_PLUGINS", "no_such_plugin,no:cpu")
    assert "cpu" in plugin_manager().names(DEVICE_COUNTS)


def test_words_and_environment_can_be_given() -> None:
    manager = plugin_manager(words=["no:cpu"], environ={"PLAUNCH_PLUGINS": "no:gpu"})
    assert manager.names(DEVICE_COUNTS) == ["auto", "xpu"]
