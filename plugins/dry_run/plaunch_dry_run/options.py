"""The option that shows what would run."""

from __future__ import annotations

from plaunch.options import Option

OPTIONS = (
    Option(
        ("--dry-run",),
        "print what would run and where each setting comes from, without starting anything; "
        "--dry-run=json prints JSON",
        metavar="FORM",
        choices=("text", "json"),
        bare="text",
        is_shared=True,
        command="plaunch_dry_run.plan:show_plan",
    ),
)
