"""The option for workers' timers."""

from __future__ import annotations

from plaunch.options import Option

PLUGIN = "plaunch_torchrun.plugin:Timers"
KNOWN_AS = "the timers of workers"

OPTIONS = (
    Option(
        ("--file-timer",),
        "kill workers whose timers expire; workers find the pipe for timer requests in "
        "TORCHELASTIC_TIMER_FILE (default: TORCHELASTIC_ENABLE_FILE_TIMER, else off)",
        metavar="0 or 1",
        choices=("0", "1"),
        bare="1",
        variables=("TORCHELASTIC_ENABLE_FILE_TIMER",),
    ),
)
