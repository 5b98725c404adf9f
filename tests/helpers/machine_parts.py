"""What tests need of the machine beside Python packages: programs and permissions.

A test marked `needs("browser")`, or a fixture that calls `need("browser")`, is skipped where it is
missing. PYTEST_REQUIRED_PARTS has names of parts, separated by commas, without which tests fail
instead. As root on Debian, this installs what is missing, and prints the names of what may be
required then:

    PYTHONPATH=tests python -m helpers.machine_parts
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROOT = Path(__file__).parents[2]
REQUIRED = "PYTEST_REQUIRED_PARTS"
PREFIX = "needs "  # of the reason of each such skip
_LIMIT = 60.0  # seconds for a program that tries a permission
_INSTALL_LIMIT = 900.0  # seconds for apt-get or pip

sys.path.insert(0, str(ROOT / "tools/cluster"))
import ray_nodes  # noqa: E402
import slurm_nodes  # noqa: E402
import ssh_nodes  # noqa: E402


@dataclass(frozen=True)
class Part:
    """Something that tests need.

    Args:
        find_missing: returns what this machine lacks; empty if nothing.
        packages: those of Debian that bring it.
        extras: those of plaunch that bring it.
    """

    find_missing: Callable[[], str]
    packages: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()

    @property
    def is_installable(self) -> bool:
        return bool(self.packages or self.extras)


def find_browser() -> str | None:
    """Return the path of a browser that runs without a screen."""
    names = [os.environ.get("PLAUNCH_BROWSER"), "chromium", "chromium-browser", "google-chrome"]
    return next((path for name in names if name and (path := shutil.which(name))), None)


def _programs(*names: str) -> str:
    missing = [name for name in names if shutil.which(name) is None]
    return f"{' and '.join(missing)} not on PATH" if missing else ""


def _program(name: str, *packages: str) -> Part:
    return Part(partial(_programs, name), packages or (name,))


def _permission(*command: str) -> str:
    """Return why a command fails, which needs nothing but a permission."""
    if missing := _programs(command[0]):
        return missing
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT, check=False
    )
    return done.stderr.decode(errors="replace").strip() if done.returncode else ""


def _etcd() -> str:
    from plaunch_rendezvous_etcd.testing import EtcdUnavailableError, find_etcd

    try:
        find_etcd()
    except EtcdUnavailableError as error:
        return str(error)
    return ""


def _libuv() -> str:
    """Return why the torch of this Python has no store with libuv, if there is a torch."""
    program = (
        "import torch.distributed as d;"
        "d.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    return "torch was built without it" if b"without libuv" in done.stderr else ""


def _terminal() -> str:
    try:
        for descriptor in os.openpty():
            os.close(descriptor)
    except OSError as error:
        return f"no terminal can be opened: {error}"
    return ""


def _usual_niceness() -> str:
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    return f"the tests run with niceness {niceness}, not 0" if niceness else ""


_UNSHARE = ("unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child")
PARTS = {
    "browser": Part(
        lambda: "" if find_browser() else "no chromium, and PLAUNCH_BROWSER names no browser",
        ("chromium",),
    ),
    "c++": _program("c++", "g++"),
    "control group": Part(lambda: ""),  # for memory; a fixture tries it
    "curl": _program("curl"),
    "etcd": Part(_etcd),  # the extra `dev` brings one
    "fuse": Part(lambda: "" if os.path.exists("/dev/fuse") else "there is no /dev/fuse"),
    "libuv": Part(_libuv),  # in torch; without it, torchrun and its clients of a store fail
    "mounts": Part(partial(_permission, *_UNSHARE, "mount", "-t", "tmpfs", "tmpfs", "/mnt")),
    "mpirun": _program("mpirun", "openmpi-bin"),
    "namespaces": Part(partial(_permission, *_UNSHARE, "--mount-proc", "true")),
    "networks": Part(
        lambda: _programs("ip", "nsenter") or _permission(*_UNSHARE, "ip", "link"),
        ("iproute2", "util-linux"),
    ),
    "openssl": _program("openssl"),
    "podman": Part(partial(_programs, "podman"), ("podman", "crun")),
    "ray": Part(ray_nodes.find_missing, ray_nodes.PACKAGES, ray_nodes.EXTRAS),
    "root": Part(lambda: "" if os.geteuid() == 0 else "the tests do not run as root"),
    "slurm": Part(slurm_nodes.find_missing, slurm_nodes.PACKAGES),
    "ssh": Part(ssh_nodes.find_missing, ssh_nodes.PACKAGES),
    "stacks": Part(lambda: ""),  # those of processes that are no children; a fixture tries it
    "terminal": Part(_terminal),
    "usual niceness": Part(_usual_niceness),
    **{shell: _program(shell) for shell in ("bash", "dash", "fish", "tcsh", "zsh")},
}


@cache
def find_missing(name: str) -> str:
    """Return what this machine lacks of a part; empty if nothing."""
    return PARTS[name].find_missing()


def need(*names: str) -> None:
    """Skip the test where a part is missing, or fail it if the part is required."""
    for name in names:
        if reason := find_missing(name):
            report_missing(name, reason)


def report_missing(name: str, reason: str) -> NoReturn:
    """Skip the test, which has found that a part is missing, or fail it as above."""
    import pytest  # which `main` does without

    text = f"{PREFIX}{name}: {reason}"
    if name in os.environ.get(REQUIRED, "").split(","):
        pytest.fail(f"{text} (required by {REQUIRED})", pytrace=False)
    return pytest.skip(text)


def install(names: Iterable[str]) -> list[str]:
    """Install parts; return those that could be installed."""
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    apt = ["apt-get", "-qq", "-o", "Acquire::http::Timeout=20", "-o", "Acquire::Retries=1"]

    def succeeds(*command: str) -> bool:
        sys.stderr.write(f"{shlex.join(command)}\n")
        try:
            subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, env=env,
                timeout=_INSTALL_LIMIT, check=True,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            sys.stderr.write(f"{error}\n{(getattr(error, 'stderr', b'') or b'').decode()}")
            return False
        return True

    parts = {name: PARTS[name] for name in names}
    if any(part.packages for part in parts.values()):
        succeeds(*apt, "update")  # a list that is old may be good enough
    pip = (sys.executable, "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"))
    apt += ["install", "--yes", "--no-install-recommends"]
    return [
        name
        for name, part in parts.items()
        if (not part.packages or succeeds(*apt, *part.packages))
        and (not part.extras or succeeds(*pip, "-e", f"{ROOT}[{','.join(part.extras)}]"))
    ]


def main() -> None:
    """Install what is missing, and print what tests may require then."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    parts = [name for name, part in PARTS.items() if part.is_installable]
    missing = [name for name in parts if find_missing(name)]
    if os.geteuid() == 0:
        installed = install(missing)
        required = [name for name in parts if name not in missing or name in installed]
    else:
        required = []  # a user may lack permissions, too
    for name in missing:
        if name not in required:
            sys.stderr.write(f"not installed: {name}: {find_missing(name)}\n")
    sys.stdout.write(",".join(required))


if __name__ == "__main__":
    main()
