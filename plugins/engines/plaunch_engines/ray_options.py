"""The options of the engine `ray`."""

from __future__ import annotations

import json

from plaunch.errors import UsageError
from plaunch.options import Option

_EXAMPLE = '{"CPU": 16, "GPU": 8}'


def read_resources(text: str) -> dict[str, float]:
    """Read what one node is requested for, as `ray start --resources` does, and one CPU.

    Raises:
        UsageError: it is not a JSON object of amounts.
    """
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict) or not all(
        type(amount) in (int, float) and amount >= 0 for amount in given.values()
    ):
        raise UsageError(f"{text!r} is not a JSON object such as {_EXAMPLE}")
    resources = {name: amount for name, amount in {"CPU": 1, **given}.items() if amount}
    if not resources:
        raise UsageError(f"{text!r} requests nothing")
    return resources


OPTIONS = (
    Option(
        ("--ray-resources",),
        f"with --on=ray: what Ray reserves on each node for the job, as in {_EXAMPLE} (default: "
        "one CPU)",
        default={"CPU": 1},
        metavar="JSON",
        read=read_resources,
        has_variable=False,
    ),
)
