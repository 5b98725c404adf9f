"""Changes by modules to their process are kept in a worker, or workers start afresh."""

from __future__ import annotations

import os

import pytest

from helpers.fork_servers import fresh_output

# A module's action at import, and what its program then observes: the same in a forked worker.
KEPT = {
    "umask": ("import os; os.umask(0o077)", "import os; print(oct(os.umask(0)))"),
    "priority": ("import os; os.nice(3)", "import os; print(os.nice(0))"),
    "limit": (
        "import resource as r; r.setrlimit(r.RLIMIT_CORE, (0, 0))",
        "import resource as r; print(r.getrlimit(r.RLIMIT_CORE))",
    ),
    "handler": (
        "import signal\ndef handle(*args): print('handled')\nsignal.signal(signal.SIGUSR1, handle)",
        "import signal; signal.raise_signal(signal.SIGUSR1)",
    ),
    "blocked signal": (
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])",
        "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []))",
    ),
    "locale": (
        "import locale; locale.setlocale(locale.LC_ALL, 'C.UTF-8')",
        "import locale; print(locale.setlocale(locale.LC_ALL))",
    ),
    "variables": (
        "import os; os.environ['MINE'] = 'x'; os.environ.pop('THEIRS', None)",
        "import os; print(os.getenv('MINE'), os.getenv('THEIRS'))",
    ),
    "path": ("import sys; sys.path.append('/mine')", "import sys; print(sys.path)"),
    "time zone": (
        "import os, time; os.environ['TZ'] = 'Asia/Tokyo'; time.tzset()",
        "import time; print(time.tzname)",
    ),
}
# Changes that a fork would not keep, and the reason for a fresh start.
REFUSED = {
    "import os; os.chdir(path='/')": "bad:1 changes the working folder",
    "import os; f = os.open('/', 0); os.fchdir(f); os.close(f)": "bad:1 changes the working folder",
    "import os; X = os.getpid()": "bad:1 calls os.getpid, which differs between workers",
    "from os import getppid\nX = getppid()": "bad:2 calls os.getppid",
    "import os; X = os.getsid(0)": "bad:1 calls os.getsid",
    "import os; X = os.getrandom(size=8)": "bad:1 takes random bytes for itself",
    "import ssl; X = ssl.RAND_bytes(8)": "bad:1 takes random bytes for itself",
    "from ssl import RAND_bytes\nX = RAND_bytes(8)": "bad:2 takes random bytes for itself",
    "import uuid; X = uuid.uuid1()": "bad:1 takes random bytes for itself",
    "import signal; signal.setitimer(signal.ITIMER_REAL, 600)": "bad:1 sets a timer",
    "import signal; signal.alarm(600)": "bad:1 sets a timer",
    "import sys; sys.argv.append('x')": "bad changes sys.argv",
    "import sys; sys.argv = ['mine']": "bad changes sys.argv",
    "import sys; sys.path.insert(0, '/mine')": "bad changes what is set again in sys.path",
    "import sys; sys.stdout.reconfigure(line_buffering=True)": "bad changes sys.stdin, sys.stdout",
    "import ctypes; X = ctypes.CDLL(None).getenv(b'RANK')": "bad:1 looks up C's getenv",
    "import ctypes; X = ctypes.pythonapi['getpid']()": "bad:1 looks up C's getpid",
    "import ctypes; ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)": "bad sets the signal for the end of",
    "import ctypes as c; c.CDLL(None).mlock(c.create_string_buffer(9), 9)": "bad locks memory",
}


@pytest.mark.parametrize("name", KEPT)
def test_a_forked_worker_keeps_the_changes(fleet, folder, caplog, monkeypatch, name):
    source, program = KEPT[name]
    (folder / "effect.py").write_text(source)
    (folder / "train.py").write_text(f"import effect; {program}")
    monkeypatch.setenv("THEIRS", "y")
    one = fleet("effect", "train.py")
    fresh = fresh_output(one.command, {**os.environ, "RANK": "0"})
    assert one.output() == fresh, caplog.text
    assert fresh.strip()


@pytest.mark.parametrize("source", REFUSED)
def test_changes_that_a_fork_does_not_keep_prevent_it(fleet, folder, caplog, source):
    (folder / "bad.py").write_text(source)
    (folder / "train.py").touch()
    assert fleet("bad", "train.py").run() == [None]
    (record,) = caplog.records
    assert f"workers are started afresh: {REFUSED[source]}" in record.getMessage()


@pytest.mark.parametrize(
    "source",
    [
        "import os; here = os.getcwd(); os.chdir('/'); os.chdir(here)",
        "import signal; signal.alarm(600); signal.alarm(0)",
        "import os\nif not (child := os.fork()): os._exit(os.getpid() == 0)\nos.waitpid(child, 0)",
        "import sys; sys.argv = list(sys.argv)",
        "import logging, multiprocessing.util, tempfile; tempfile.gettempdir()",
    ],
)
def test_changes_that_are_undone_do_not_prevent_a_fork(fleet, folder, caplog, source):
    (folder / "fine.py").write_text(source)
    (folder / "train.py").write_text("import sys; print('fine' in sys.modules)")
    assert fleet("fine", "train.py").output() == "True\n", caplog.text
