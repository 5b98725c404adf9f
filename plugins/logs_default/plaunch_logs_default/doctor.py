"""The doctor's check of temporary folders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.doctor import Finding, Status

from plaunch_logs_default.folders import BOOT_ID, find_stale_folders

if TYPE_CHECKING:
    from plaunch.doctor import DoctorContext

_SHOWN = 5


def find_leftovers(context: DoctorContext) -> list[Finding]:
    """Find temporary folders of launchers that were killed."""
    given = (context.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    base = next((folder for folder in given if folder), None) or context.path("/tmp")  # noqa: S108
    folders = sorted(find_stale_folders(base, context.path(BOOT_ID)))
    if not folders:
        return []
    more = f" and {len(folders) - _SHOWN} more" if len(folders) > _SHOWN else ""
    return [
        Finding(
            Status.WARNING,
            "leftovers",
            f"{len(folders)} temporary folder(s) of launchers that were killed: "
            f"{', '.join(folders[:_SHOWN])}{more}",
            "no action: the next launch without --log-dir removes them. If they contain other "
            f"files than error files, remove them: rm -r {' '.join(folders[:_SHOWN])}",
        )
    ]
