"""`${local_rank}` in worker arguments."""

from __future__ import annotations

from typing import Any


class macros:  # noqa: N801 - the name is torchrun's
    """The macros that worker arguments may contain; names are torchrun's."""

    local_rank = "${local_rank}"

    @staticmethod
    def substitute(args: list[Any], local_rank: str) -> list[Any]:
        """Replace `${local_rank}` in every string of `args`; everything else stays as it is.

        torchrun substitutes with string templates, which also turn `$$` into `$`; an argument
        without the macro is left alone here.
        """
        return [
            arg.replace(macros.local_rank, local_rank) if isinstance(arg, str) else arg
            for arg in args
        ]
