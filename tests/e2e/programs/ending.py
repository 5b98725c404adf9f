"""Exits as its arguments say."""

import atexit
import faulthandler
import os
import signal
import sys
import threading

way = sys.argv[1]
atexit.register(lambda: sys.stdout.write("at exit\n"))
if way == "text":
    sys.exit("a reason")
if way == "code":
    sys.exit(70)
if way == "error":
    raise LookupError("not there") from OSError("the cause")
if way == "thread":
    threading.Thread(target=lambda: sys.stdout.write("a thread goes on\n")).start()
if way == "interrupt":
    signal.raise_signal(signal.SIGINT)
if way == "closed":
    sys.stdout.close()
if way == "fault":
    faulthandler.enable()
    os.kill(os.getpid(), signal.SIGSEGV)
