"""Functions that run as workers in the tests; a new process can import them by name."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time

ENV_AT_IMPORT = os.environ.get("WORKER_TEST")


def add(*numbers):
    return sum(numbers)


def trainer(a, b, c):
    print(f"stdout of {os.environ['LOCAL_RANK']}: {a} {b} {c}")
    print(f"stderr of {os.environ['LOCAL_RANK']}: {a} {b} {c}", file=sys.stderr)
    return a + b + c


def give(value):
    return value


def megabytes(count):
    return bytes(count << 20)


def facts():
    return {
        "pid": os.getpid(),
        "session": os.getsid(0),
        "group": os.getpgrp(),
        "env": os.environ.get("WORKER_TEST"),
        "env_at_import": ENV_AT_IMPORT,
        "launcher_env": os.environ.get("LAUNCHER_TEST"),
        "removed_env": os.environ.get("REMOVED_TEST"),
        "daemon": multiprocessing.current_process().daemon,
        "line_buffered": sys.stdout.line_buffering,
        "cwd": os.getcwd(),
    }


def environment():
    return dict(os.environ)


def signal_facts():
    return {
        "sigterm": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
        "sigint": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "sigusr2_ignored": signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN,
        "blocked": sorted(int(signum) for signum in signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "wakeup_fd": signal.set_wakeup_fd(-1),
    }


def open_files():
    """The open files of this process but its three streams: `/proc` links by descriptor."""
    own = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            own[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            pass  # the directory's own descriptor
    return {fd: target for fd, target in own.items() if fd > 2}


def fail(message):
    raise ValueError(message)


def exit_with(code):
    sys.exit(code)


def interrupted():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be inherited as ignored
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(600)


def sleep_or_fail(who_fails, exitcode):
    """The failing worker waits until all others run."""
    rank, folder = int(os.environ["LOCAL_RANK"]), os.environ["READY_DIR"]
    open(os.path.join(folder, str(rank)), "w").close()
    if rank == who_fails:
        others = int(os.environ["NPROCS"])
        while len(os.listdir(folder)) < others:
            time.sleep(0.002)
        sys.exit(exitcode)
    time.sleep(600)


def ignore_sigterm(ready):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(ready, "w").close()
    time.sleep(600)


def wait_for_sigterm(ready):
    """Like a trainer that writes a last checkpoint on SIGTERM."""
    stopped = []  # not an Event: the main thread may hold its lock when the handler runs
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    open(ready, "w").close()
    while not stopped:
        time.sleep(0.01)
    open(f"{ready}.checkpoint", "w").close()
    sys.exit(3)


def ready_and_sleep(ready):
    open(ready, "w").close()
    time.sleep(600)


def leave_a_child(path, value):
    """Return while a child that ignores SIGTERM runs, with every descriptor open."""
    code = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True)"
    child = subprocess.Popen(
        [sys.executable, "-c", f"{code}; time.sleep(600)"],
        stdout=subprocess.PIPE,
        close_fds=False,
    )
    child.stdout.readline()
    with open(f"{path}.new", "w") as file:
        file.write(str(child.pid))
    os.rename(f"{path}.new", path)
    return value


def fork_a_child_that_holds_the_result_pipe(value):
    """Like a library that forks a helper: the helper has a copy of every descriptor."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
        os._exit(0)
    return value, pid


def start_processes_itself(count):
    with multiprocessing.get_context("fork").Pool(count) as pool:
        return pool.map(abs, [-1, -2, -3])


def print_from_c(text):
    import ctypes

    print("from Python")
    ctypes.CDLL(None).puts(text.encode())


def use_queue(queue, value):
    queue.put(value)


def mean_of_tensor(tensor):
    tensor += 1
    return tensor.mean(), float(tensor.sum())


def read_stdin():
    return sys.stdin.read()


def return_when(mine, others, code=0):
    """Create the file `mine`, wait for the file `others`, and return, or exit with a code."""
    with open(mine, "w"):
        pass
    while others and not os.path.exists(others):
        time.sleep(0.01)
    if code:
        sys.exit(code)
    return os.getpid()
