"""A health check: `--health-check=mount:/data` excludes nodes without that file system."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from plaunch.doctor import Finding, Status
from plaunch.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plaunch.health import HealthOccasion
    from plaunch.plugin import PluginContext


class MountCheck:
    """Checks that a folder is a mount point."""

    takes_argument = True

    def __init__(self, context: PluginContext) -> None:
        self._folder = context.options.get("argument", "")
        if not os.path.isabs(self._folder) or "\0" in self._folder:
            raise UsageError("write --health-check=mount:/FOLDER, with an absolute path")

    def check(self, occasion: HealthOccasion) -> Iterator[Finding]:
        """Check the folder."""
        if os.path.ismount(self._folder):
            yield Finding(Status.OK, "mount", f"{self._folder} is mounted")
        else:
            yield Finding(
                Status.PROBLEM, "mount", f"{self._folder} is not mounted", "mount it on this node"
            )
