"""The environment of a benchmark: the machine, its load, and versions."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version

from plaunch_rendezvous_etcd.testing import EtcdUnavailableError, find_etcd


def facts() -> dict[str, str]:
    """Return the machine and its current load."""
    kibibytes = int(_after_colon("/proc/meminfo", "MemTotal").split()[0])
    return {
        "processor": _after_colon("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{kibibytes / (1 << 20):.1f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "load before": f"{os.getloadavg()[0]:.2f} processes, on average of a minute",
    }


def versions(folder: str) -> dict[str, str]:
    """Return the versions of plaunch in a folder, and of the other packages."""
    return {
        "plaunch": f"{_package('plaunch')}, commit {_commit(folder)}",
        "Python": platform.python_version(),
        "torch": _package("torch"),
        "etcd": _etcd(),
        "grpcio": _package("grpcio"),
    }


def _after_colon(path: str, name: str) -> str:
    """Return the value after the first `name:` in a file of the kernel, or an empty text."""
    with open(path, encoding="utf-8") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return ""


def _package(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def _etcd() -> str:
    try:
        printed = _printed(find_etcd(), "--version")
    except EtcdUnavailableError:
        return "none"
    return printed.partition("\n")[0].rpartition(" ")[2]


def _commit(folder: str) -> str:
    """Return the commit of a checkout, and whether there are uncommitted changes."""
    git = ("git", "-C", folder)
    try:
        commit = _printed(*git, "rev-parse", "--short", "HEAD").strip()
        return f"{commit} with changes" if _printed(*git, "status", "--porcelain") else commit
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _printed(*argv: str) -> str:
    return subprocess.run(
        argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=60, check=True
    ).stdout
