"""The conformance suite for device counters."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, ClassVar

import pytest

from plaunch_testing.conformance.plugin_suite import PluginSuite, opened, usage_errors

if TYPE_CHECKING:
    from plaunch.plugin import DeviceCounter


class DeviceCounterConformance(PluginSuite):
    """Subclass this suite and implement `plugin`; pytest collects the subclass.

    On a machine without its devices, a counter may return 0 or raise `UsageError`. `seconds` is its
    time limit.
    """

    seconds: ClassVar[float] = 20.0  # some start another process that imports torch

    def plugin(self) -> DeviceCounter:
        """Return the object that the counter's name refers to; override this."""
        raise NotImplementedError

    def count(self) -> int | None:
        """Count once; return None if the counter raises a `UsageError`."""
        with usage_errors():
            count: int = self.call("counting", self.thing)
            return count
        return None

    def use_once(self) -> object:
        """Count."""
        return self.count()

    def test_it_takes_no_arguments(self) -> None:
        """It can be called without arguments."""
        counter = self.thing
        assert callable(counter), f"{counter!r} cannot be called"
        try:
            signature = inspect.signature(counter)
        except ValueError:
            pytest.skip("its signature is unknown")
        signature.bind()

    def test_it_counts_or_raises_a_usage_error(self) -> None:
        """It returns in time, and raises only `UsageError`."""
        self.count()

    def test_the_count_is_a_number_that_is_not_negative(self) -> None:
        """The count is an int: neither bool, float nor str."""
        count = self.count_or_skip()
        assert type(count) is int, f"the count is {count!r}, which is not an int"
        assert count >= 0, f"the count is {count}"

    def test_it_counts_the_same_again(self) -> None:
        """A second call returns the same number."""
        first = self.count_or_skip()
        assert self.count() == first

    def test_it_leaves_nothing_open(self) -> None:
        """It closes all files that it opens."""
        self.count()
        found = opened(self.files_before)
        assert not found, f"it leaves open {found}"

    def count_or_skip(self) -> int:
        """Count once; skip the test without a result, because another one covers that."""
        try:
            count = self.count()
        except Exception as error:  # noqa: BLE001 - another test reports it
            pytest.skip(f"it does not count: {error!r}")
        if count is None:
            pytest.skip("its devices are not on this machine")
        return count
