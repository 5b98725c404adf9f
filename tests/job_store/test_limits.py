"""docs/store.md lists the limits of the store with their values."""

from __future__ import annotations

import re

from plaunch_job_store import limits

from helpers.sources import ROOT

_ROW = re.compile(r"^\| `([A-Z_]+)` \| ([\d.,]+) ?(MiB|KiB|bytes|s|) \|", re.MULTILINE)
_UNITS = {"MiB": 1 << 20, "KiB": 1 << 10}


def test_the_page_has_all_of_them():
    page = (ROOT / "docs" / "store.md").read_text()
    found = {
        name: float(number.replace(",", "")) * _UNITS.get(unit, 1)
        for name, number, unit in _ROW.findall(page)
    }
    assert found == {name: value for name, value in vars(limits).items() if name.isupper()}


def test_the_memory_of_the_process_has_room_for_all_that_is_counted():
    assert limits.MAX_MEMORY > 1.5 * limits.MAX_BYTES + limits.MAX_BUFFERED
