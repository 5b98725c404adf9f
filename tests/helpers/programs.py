"""Python programs that a test runs to their end, alone or concurrently, or with pipes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

BOUND = 150.0  # seconds: importing torch alone may take one minute on a busy machine


def run_python(*arguments, timeout=BOUND, check=False, **options):
    """Run `python ARGUMENTS`; the result has the exit code and the output as text.

    Options are those of `subprocess.run`.
    """
    command = [sys.executable, *map(str, arguments)]
    wanted = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, **options}
    return subprocess.run(command, timeout=timeout, check=check, **wanted)


@contextlib.contextmanager
def running_python(*arguments, **options):
    """Start `python ARGUMENTS` with text pipes; it is killed after the block.

    Options are those of `subprocess.Popen`.
    """
    command = [sys.executable, *map(str, arguments)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **{**pipes, **options}) as process:
        try:
            yield process
        finally:
            process.kill()


def end_launch(process):
    """End a launch that a failed test has left running, with its workers.

    Workers have their own sessions, so the launcher must pass SIGTERM on.
    """
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(BOUND)
    process.kill()
    process.wait()


def run_all(programs, timeout=2 * BOUND, **options):
    """Run `python WORDS` for each program concurrently; return the results in order.

    Options are those of `subprocess.Popen`.
    """
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    wanted = {**pipes, "text": True, "env": {**os.environ, "LOGLEVEL": "WARNING"}, **options}
    with contextlib.ExitStack() as stack:
        started = []
        for words in programs:
            process = subprocess.Popen([sys.executable, *words], **wanted)
            started.append(stack.enter_context(process))
            stack.callback(process.kill)
        outputs = [process.communicate(timeout=timeout) for process in started]
    return [
        subprocess.CompletedProcess(process.args, process.returncode, *output)
        for process, output in zip(started, outputs, strict=True)
    ]
