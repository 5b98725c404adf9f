"""No options: this is how the doctor finds the plugin, and its check."""

from __future__ import annotations

PLUGIN = "plaunch_logs_default.doctor"
OPTIONS = ()
