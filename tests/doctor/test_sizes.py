from __future__ import annotations

import pytest
from plaunch.errors import UsageError
from plaunch.numbers import format_bytes
from plaunch_doctor.machine import read_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *(("1", 1), ("512k", 512 << 10), ("100M", 100 << 20), ("8GiB", 8 << 30)),
        *(("1.5g", 3 << 29), ("2tb", 2 << 40)),
    ],
)
def test_a_size_has_a_unit(text, size):
    assert read_size(text, "disk") == size


@pytest.mark.parametrize("text", ["", "0", "-1", "8 G", "G", "1e9", "inf", "٣", "9" * 99, "1.5.5"])
def test_an_invalid_size_is_a_usage_error(text):
    with pytest.raises(UsageError, match=r"'disk' cannot use .*--health-check=disk:SIZE.*500M"):
        read_size(text, "disk")


def test_sizes_are_formatted_for_users():
    assert [format_bytes(n) for n in (0, 12 << 20, 3 << 29, 5000 << 40)] == [
        *("0 bytes", "12 MiB", "1.5 GiB", "5000 TiB")
    ]
