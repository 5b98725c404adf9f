"""The option for fault injection."""

from __future__ import annotations

from plaunch.options import Option

PLUGIN = "plaunch_fault_injection.plugin:FaultInjection"
KNOWN_AS = "fault injection"


def read_faults(text: str) -> str:
    """Check the text and return it unchanged.

    Raises:
        ValueError: a fault is malformed.
    """
    from plaunch_fault_injection.faults import parse_faults  # only if the option is given

    parse_faults(text)
    return text


OPTIONS = (
    Option(
        ("--inject",),
        "inject faults into this job to test its recovery, as in "
        "'kill:rank=1,after=30s;stop:agent,for=10s'; faults are kill, stop, exit and hang (default:"
        " none)",
        metavar="FAULT;...",
        read=read_faults,
    ),
)
