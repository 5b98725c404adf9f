"""Runs a command in namespaces of its own, where it can change and signal nothing outside.

A changed line of a launcher may signal process groups and delete folders that it should not. In the
sandbox, the command sees the machine's files, but can write only to a copy of the checkout in
memory, to temporary folders and to one output folder. Its processes are alone in a namespace, and
end with it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

OUTPUT = Path("/dev/shm/output")
CPU_LIMIT, WALL_LIMIT, MEMORY_LIMIT = 120, 121, 122  # exit codes of the sandbox
MEMORY_BYTES = 4 << 30
POLL_SECONDS = 0.2
TEMPORARY = ("/tmp", "/var/tmp")


class SandboxError(Exception):
    """This machine does not let us make namespaces."""


@dataclass(frozen=True)
class Sandbox:
    """Where commands run.

    Args:
        root: the checkout, in whose place each command sees a copy.
        tree: what is copied.
        output: the folder that a command can write to, as `OUTPUT`.
    """

    root: Path
    tree: Path
    output: Path

    def check(self) -> None:
        """Raise `SandboxError` if commands cannot run here."""
        self.output.mkdir(parents=True, exist_ok=True)
        tried = self.run(["true"], cpu=30, wall=60, log=self.output / "check.log")
        if tried != 0:
            said = (self.output / "check.log").read_text().strip()
            raise SandboxError(f"cannot make namespaces (root can, on most machines): {said}")

    def run(
        self,
        command: list[str],
        *,
        cpu: float,
        wall: float,
        log: Path,
        files: dict[str, Path] | None = None,
    ) -> int:
        """Run a command in the checkout; return its exit code, or one of the limits.

        Args:
            command: a program and its arguments.
            cpu: seconds of CPU that all its processes may take together.
            wall: seconds that it may take.
            log: gets its output.
            files: those of the checkout that are replaced, and by what.
        """
        self.output.mkdir(parents=True, exist_ok=True)
        unshare = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
        if os.geteuid() != 0:
            unshare += ["--user", "--map-root-user"]
        inside = [sys.executable, __file__, f"--root={self.root}", f"--tree={self.tree}"]
        inside += [f"--output={self.output}", f"--cpu={cpu}", f"--wall={wall}"]
        inside += [f"--file={name}={path}" for name, path in (files or {}).items()]
        with log.open("wb") as output:
            return subprocess.run(
                [*unshare, *inside, "--", *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode


def main() -> int:
    """Run as the first process of the namespace."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=Path)
    parser.add_argument("--tree", type=Path)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--cpu", type=float)
    parser.add_argument("--wall", type=float)
    parser.add_argument("--file", action="append", default=[])
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    contents = {}
    for each in args.file:
        name, _, path = each.partition("=")
        contents[name] = Path(path).read_bytes()
    protect(args.root, args.tree, args.output)
    for name, content in contents.items():
        (args.root / name).write_bytes(content)
    os.chdir(args.root)
    process = subprocess.Popen(args.command, start_new_session=True)
    return watch(process, args.cpu, args.wall)


def protect(root: Path, tree: Path, output: Path) -> None:
    """Make everything read-only, except for what the command may write to."""
    mount("--make-rprivate", "/")
    kept = os.open(output, os.O_PATH)
    needed = (root, Path(sys.prefix), Path(sys.base_prefix))
    mount("-t", "tmpfs", "sandbox", "/dev/shm")
    OUTPUT.mkdir()
    mount("--bind", f"/proc/{os.getpid()}/fd/{kept}", str(OUTPUT))
    os.close(kept)
    for folder in TEMPORARY:
        if any(path.is_relative_to(folder) for path in needed):
            mount("--bind", folder, folder)  # it stays writable, and shared
        else:
            mount("-t", "tmpfs", "sandbox", folder)
    mount("-o", "remount,bind,ro", "/")
    upper, work = Path("/dev/shm/.upper"), Path("/dev/shm/.work")
    upper.mkdir()
    work.mkdir()
    layers = f"lowerdir={tree},upperdir={upper},workdir={work}"
    mount("-t", "overlay", "sandbox", "-o", layers, str(root))


def mount(*words: str) -> None:
    """Change the mounts of the namespace."""
    subprocess.run([shutil.which("mount") or "/bin/mount", *words], check=True)


def watch(process: subprocess.Popen[bytes], cpu: float, wall: float) -> int:
    """Wait for the command, reap what it leaves, and hold the limits; return the exit code."""
    until = time.monotonic() + wall
    while (code := process.poll()) is None:
        if used_cpu() > cpu:
            return CPU_LIMIT
        if time.monotonic() > until:
            return WALL_LIMIT
        if used_memory() > MEMORY_BYTES:
            return MEMORY_LIMIT
        reap_others(process.pid)
        time.sleep(POLL_SECONDS)
    return code if code >= 0 else 128 - code


def reap_others(kept: int) -> None:
    """Reap the orphans that have ended, which are children of the first process."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid == kept:
            return
        os.waitpid(ended.si_pid, 0)


def used_cpu() -> float:
    """Return the CPU seconds of all processes of the namespace, with those that have ended."""
    ticks = sum(int(field) for stat in process_stats() for field in stat[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def used_memory() -> int:
    """Return the resident bytes of all processes of the namespace."""
    return sum(int(stat[21]) for stat in process_stats()) * os.sysconf("SC_PAGE_SIZE")


def process_stats() -> list[list[str]]:
    """Return the fields of each /proc/PID/stat from the state on."""
    stats = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                text = Path("/proc", name, "stat").read_text()
            except OSError:  # it has ended
                continue
            stats.append(text.rpartition(")")[2].split())
    return stats


if __name__ == "__main__":
    sys.exit(main())
