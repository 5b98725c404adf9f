"""Changes its environment, and prints the environment of libraries and children."""

import ctypes
import os
import subprocess
import sys

getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p


def show(when):
    names = ("RANK", "LOGLEVEL", "CHANGED", "PUT")
    code = "import os, sys; print([os.environ.get(name) for name in sys.argv[1:]])"
    child = subprocess.run(
        [sys.executable, "-c", code, *names], capture_output=True, text=True, check=True
    )
    own = [os.environ.get(name) for name in names]
    native = [getenv(name.encode()) for name in names]
    sys.stdout.write(f"{when}: {own} {native} {child.stdout.strip()}\n")


show("before")
os.environ["CHANGED"] = "x" * 10
os.environ["RANK"] += "1"
del os.environ["LOGLEVEL"]
os.putenv("PUT", "beside os.environ")
show("after")
