"""Forks children: one that keeps running Python, one that executes a program, and a daemon."""

import atexit
import os
import subprocess
import sys
import threading
import time

rank = os.environ["RANK"]


def say(text):
    os.write(1, f"rank {rank}: {text}\n".encode())


def fork(work):
    """Run a function in a forked child, and return its exit code."""
    child = os.fork()
    if not child:
        os._exit(work() or 0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def is_daemon():
    """Become a daemon with two forks; the second parent exits at once."""
    os.setsid()
    if os.fork():
        os._exit(0)
    while os.getppid() == first:
        time.sleep(0.001)
    os.chdir("/")
    os.umask(0)
    os.write(report, f"in session of its own: {os.getsid(0) != session}".encode())


def become():
    os.environ["CHANGED"] = "by the child"
    code = "import os, sys; sys.exit(len(os.environ['CHANGED'] + sys.argv[1]))"
    os.execv(sys.executable, [sys.executable, "-c", code, rank])


atexit.register(say, "ends")
say(f"a child ended with {fork(lambda: 7)}")
say(f"another program ended with {fork(become)}")
thread = threading.Thread(target=lambda: say(f"a child of a thread ended with {fork(lambda: 3)}"))
thread.start()
thread.join()
say(subprocess.run(["echo", "a program"], capture_output=True, text=True, check=True).stdout)

session = os.getsid(0)
read, report = os.pipe()
os.set_inheritable(report, True)
if not os.fork():
    first = os.getpid()
    is_daemon()
    os._exit(0)
os.wait()
os.close(report)
with open(read) as daemon:
    say(f"a daemon is {daemon.read()}")
if len(sys.argv) == 1:
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], "again"])
