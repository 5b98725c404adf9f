"""Runs the programs named on the command line, each in a fork of this process.

    API=torch BEFORE=CODE python driver.py FOLDER program ...

torch is imported once, after the code in BEFORE. Prints JSON: by program its exit code, what it has
shown and its stderr.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import signal
import sys
import time
import traceback
from pathlib import Path

HERE = Path(__file__).parent
AT_ONCE = 3
LIMIT = 45  # seconds for one program


def run(name, folder):
    """Become the program; never returns."""
    os.setsid()
    os.chdir(folder)
    for fd, stream in ((1, "stdout"), (2, "stderr")):
        file = os.open(f"{folder}/{stream}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, fd)
    signal.alarm(LIMIT)
    os.environ["OBSERVED"] = f"{folder}/observed"
    code = 0
    try:
        sys.argv = [name]
        runpy.run_path(str(HERE / f"{name}.py"), run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def read(path):
    return path.read_text(errors="replace") if path.exists() else ""


def main(top, *names):
    import api

    exec(os.environ.pop("BEFORE"), {})
    api.load()
    left, running, results = list(names), {}, {}
    while left or running:
        while left and len(running) < AT_ONCE:
            name = left.pop(0)
            folder = Path(top) / name
            folder.mkdir()
            pid = os.fork()
            if pid == 0:
                run(name, str(folder))
            running[pid] = name, folder, time.monotonic()
        pid, status = os.wait()
        if pid not in running:
            continue
        name, folder, began = running.pop(pid)
        shown = {}
        for line in read(folder / "observed").splitlines():
            shown.update(json.loads(line))
        results[name] = {
            "exit code": os.waitstatus_to_exitcode(status),
            **shown,
            "seconds": time.monotonic() - began,
            "stderr": read(folder / "stderr")[-3000:],
        }
    print(json.dumps(results))


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    main(*sys.argv[1:])
