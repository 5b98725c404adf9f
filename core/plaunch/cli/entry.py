"""The first lines of the `plaunch` program, before anything that takes time to import."""

from __future__ import annotations

import sys
from typing import NoReturn


def entry_point() -> NoReturn:
    """Run the command line of this process and end it.

    Ctrl-C is answered in one line from here on, also while modules are being imported. Any other
    signal ends a launcher without workers as it ends any program.
    """
    try:
        from plaunch.cli.program import main  # noqa: PLC0415 - inside the try, on purpose

        code = main()
    except KeyboardInterrupt:
        sys.stderr.write("plaunch: interrupted while no worker was running\n")
        code = 130
    sys.exit(code)
