"""The options of the doctor."""

from __future__ import annotations

from plaunch.options import Option

# What runs the health checks of a launch.
LAUNCH_HEALTH_CHECKS = "plaunch_doctor.health:LaunchHealthChecks"

OPTIONS = (
    Option(
        ("--doctor",),
        "check this node for common problems, with the options given",
        read=None,
        command="plaunch_doctor.command:run_doctor",
        takes_errors=True,
    ),
    Option(
        ("--list-plugins",),
        "list all plugins and their state",
        read=None,
        command="plaunch_doctor.listing:show_plugins",
    ),
)
