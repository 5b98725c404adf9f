#!/usr/bin/env python3
"""A podman for tests, whose containers are processes of this machine.

As with podman, a container is the child of a monitor that survives `podman run`. When `podman run`
ends, even by SIGKILL, the monitor closes the container's standard input. It reads the container's
output to its end, and then removes the container. Options must be single words. The variable
FAKE_PODMAN names a folder, which has a file for each container.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

IMAGE = "localhost/train"
REMOVAL_TIMEOUT = 10.0  # seconds


def main(words):
    folder = Path(os.environ["FAKE_PODMAN"])
    match words:
        case ["image", "exists", name]:
            return int(name != IMAGE)
        case ["run", *rest]:
            return run(folder, rest)
        case ["monitor", path]:
            return watch(Path(path))
        case ["rm" | "kill", *rest]:
            return end([folder / word for word in rest if not word.startswith("--")])
        case ["ps", *_]:
            sys.stdout.writelines(f"{path.name}\n" for path in sorted(folder.iterdir()))
            return 0
    return fail(f"unrecognized command `podman {' '.join(words)}`")


def fail(text, code=125):
    sys.stderr.write(f"Error: {text}\n")
    return code


def run(folder, words):
    options = {}
    while words and words[0].startswith("--"):
        name, _, value = words.pop(0).partition("=")
        options[name] = value
    if "--nonsense" in options:
        return fail("unknown flag: --nonsense")
    image, *command = words
    assert image == IMAGE
    assert {"--rm", "--interactive"} <= set(options)
    monitor = subprocess.Popen(
        [sys.executable, __file__, "monitor", folder / options["--name"]],
        env={**os.environ, "FAKE_COMMAND": json.dumps(command)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    outputs = {monitor.stdout.fileno(): 1, monitor.stderr.fileno(): 2}
    copy(monitor.stdin, outputs)
    return monitor.wait()


def watch(path):
    """Run a container to its end, and return its exit code; `podman run` has the other ends."""
    try:
        container = subprocess.Popen(
            json.loads(os.environ["FAKE_COMMAND"]),
            cwd="/",
            env={"PATH": os.environ["PATH"], "HOME": "/root", "container": "podman"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except OSError as error:
        return fail(f"crun: {error}", 127)
    path.write_text(str(container.pid))
    outputs = {container.stdout.fileno(): 1, container.stderr.fileno(): 2}
    copy(container.stdin, outputs)
    code = container.wait()
    path.unlink()
    return code if code >= 0 else 128 - code


def copy(stdin, outputs):
    """Copy standard input to a file, which then is closed, and outputs until all have ended."""
    links = {0: stdin.fileno(), **outputs}
    while links.keys() & outputs.keys():
        for fd in select.select(list(links), [], [])[0]:
            data = os.read(fd, 65536)
            if not data:
                del links[fd]
                if fd == 0:
                    stdin.close()
            try:
                while data:
                    data = data[os.write(links[fd], data) :]
            except BrokenPipeError:  # the reader has ended
                pass


def end(paths):
    deadline = time.monotonic() + REMOVAL_TIMEOUT
    for path in paths:
        try:
            os.kill(int(path.read_text()), signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            continue
        while path.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
