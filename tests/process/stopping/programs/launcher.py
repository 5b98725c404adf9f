"""A user's program that starts workers with plaunch's library and waits for them.

launcher.py FOLDER KIND,KIND,... END START_METHOD [thread]
"""

from __future__ import annotations

import os
import sys
import threading
import time

import descendants
from plaunch.process import start_processes


def main(folder, kinds, end, method, *extras):
    if "thread" in extras:
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    kinds = [kind for kind in kinds.split(",") if kind]
    if method == "program":
        argv = (descendants.__file__, folder, ",".join(kinds), end)
        context = start_processes("t", sys.executable, {0: argv, 1: argv})
    else:
        args = (folder, kinds, end)
        context = start_processes("t", descendants.work, {0: args, 1: args}, start_method=method)
    descendants.note(folder, "launcher")
    result = context.wait(60)
    os._exit(0 if result is not None and not result.is_failed() else 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
