"""What every device counter must do."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, ClassVar

import pytest

from plaunch_testing.conformance.plugin_suite import PluginSuite
from plaunch_testing.conformance.surroundings import opened, usage_errors

if TYPE_CHECKING:
    from plaunch.plugin import DeviceCounter


class DeviceCounterConformance(PluginSuite):
    """Derive from it, say what the `plugin` is, and let pytest collect the class.

    On a machine without its devices, a counter may say 0 or raise `UsageError`. `seconds` is how
    long it may take.
    """

    seconds: ClassVar[float] = 20.0  # one that must ask torch has it asked in another process

    def plugin(self) -> DeviceCounter:
        """What the counter's name gives; to be overridden."""
        raise NotImplementedError

    def count(self) -> int | None:
        """Count once; None if the counter says with a `UsageError` that there is nothing."""
        with usage_errors():
            count: int = self.call("counting", self.thing)
            return count
        return None

    def use_once(self) -> object:
        """Count."""
        return self.count()

    def test_it_takes_no_arguments(self) -> None:
        """It is called without any."""
        counter = self.thing
        assert callable(counter), f"{counter!r} cannot be called"
        try:
            signature = inspect.signature(counter)
        except ValueError:
            pytest.skip("it does not tell what it takes")
        signature.bind()

    def test_it_counts_or_says_why_not(self) -> None:
        """In time; any error other than `UsageError` is a fault."""
        self.count()

    def test_the_count_is_a_number_that_is_not_negative(self) -> None:
        """An int: neither a bool nor a float nor a text."""
        count = self.count_or_skip()
        assert type(count) is int, f"the count is {count!r}, which is no int"
        assert count >= 0, f"the count is {count}"

    def test_it_counts_the_same_again(self) -> None:
        """The doctor asks, and then the launch does."""
        first = self.count_or_skip()
        assert self.count() == first

    def test_it_leaves_nothing_open(self) -> None:
        """Whatever it has opened, it closes."""
        self.count()
        found = opened(self.files_before)
        assert not found, f"it leaves open {found}"

    def count_or_skip(self) -> int:
        """Count once; the test is skipped without a result, as another one is about that."""
        try:
            count = self.count()
        except Exception as error:  # noqa: BLE001 - another test is about it
            pytest.skip(f"it does not count: {error!r}")
        if count is None:
            pytest.skip("there is nothing here that it counts")
        return count
