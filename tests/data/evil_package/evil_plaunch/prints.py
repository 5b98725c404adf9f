"""Prints, in every way that there is, whenever it is called."""

import atexit
import os
import subprocess

from plaunch.plugin import hookimpl


def say(where):
    print(f"evil: print {where}", flush=True)
    if "EVIL_WRITES" in os.environ:
        os.write(1, f"evil: write {where}\n".encode())
        subprocess.run(["echo", f"evil: echo {where}"], check=True)


say("at import")


class Plugin:
    def __init__(self):
        say("when it is made")
        atexit.register(say, "at exit")

    @hookimpl
    def plaunch_worker_env(self):
        say("in worker_env")
        return {"EVIL": "1"}

    @hookimpl
    def plaunch_workers_started(self):
        say("in workers_started")
