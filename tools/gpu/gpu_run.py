"""Runs `tests/gpu` on a machine with one GPU and no network, and writes docs/gpu.md.

`tools/gpu_check wheels` makes the folder of wheels beforehand, on a machine with a network. On the
machine with the GPU, `tools/gpu_check` installs from it into its own environment, which sees the
torch of the Python that runs it. It needs only the standard library, and ends within ten
minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import signal
import site
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import gpu_page

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[2]
WHEELS = ROOT / "build/gpu-wheels"
PAGE = ROOT / "docs/gpu.md"

LIMIT = 600  # seconds for everything
_FOR_THE_PAGE = 30  # seconds that are kept for the steps after the tests
_EACH_TEST = 100  # seconds
_OLDEST_TORCH = (2, 11)

# The packages to build plaunch, to run it, and to test it. pip is among
# them, because a bare Python may have none.
PACKAGES = (
    *("pip", "hatchling", "editables"),
    *("pluggy", "importlib-metadata", "nvidia-ml-py", "py-spy"),
    *("pytest", "pytest-timeout", "pytest-xdist", "hypothesis"),
    # Python 3.10 needs these; pip decides that by the Python that downloads, not the one named.
    *("exceptiongroup", "tomli", "typing-extensions"),
)

# All platform tags of a machine with a current torch; pip tries only the named ones.
_PLATFORMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014", "manylinux_2_5", "manylinux1")

_ASK_TORCH = """\
import json, torch
cuda = torch.cuda.is_available()
nccl = torch.cuda.nccl.version() if cuda else ()
print(json.dumps({
    "torch": torch.__version__, "CUDA": torch.version.cuda or "", "devices":
    torch.cuda.device_count() if cuda else 0, "NCCL": ".".join(map(str, nccl)),
}))
"""
_ASK_VERSIONS = """\
import json
from importlib.metadata import version
names = ("plaunch", "py-spy", "nvidia-ml-py")
print(json.dumps({name: version(name) for name in names}))
"""


class CheckError(Exception):
    """The check cannot be run; the message has the cause and the fix."""


def make_wheels(folder: Path, python_version: str, processor: str) -> None:
    """Download the wheels for a machine with this Python and processor.

    Raises:
        CheckError: pip failed.
    """
    command = [sys.executable, "-m", "pip", "download", "--only-binary=:all:"]
    command += [f"--dest={folder}"]
    command += [f"--python-version={python_version}", *PACKAGES]
    command += [f"--platform={tag}_{processor}" for tag in _PLATFORMS]
    if subprocess.run(command, check=False).returncode:
        raise CheckError("pip could not download the wheels; its message is above")
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{folder}: {len(list(folder.iterdir()))} wheels, {size / 1e6:.1f} MB")


def ask_torch() -> dict[str, str]:
    """Return the versions of this Python's torch.

    Raises:
        CheckError: it has none, or one that is too old.
    """
    asked = subprocess.run(
        [sys.executable, "-c", _ASK_TORCH], capture_output=True, text=True, check=False
    )
    if asked.returncode:
        last = (asked.stderr.strip().splitlines() or ["no message"])[-1]
        raise CheckError(f"{sys.executable} cannot import torch ({last}); name another with PYTHON")
    found: dict[str, str] = json.loads(asked.stdout.splitlines()[-1])
    numbers = tuple(int(part) for part in found["torch"].split(".")[:2])
    if numbers < _OLDEST_TORCH:
        raise CheckError(f"torch {found['torch']} is too old; install 2.11 or later")
    return found


def install(folder: Path, wheels: Path) -> Path:
    """Make an environment with plaunch from the source tree; return its Python.

    Raises:
        CheckError: a step failed.
    """
    found = sorted(wheels.glob("pip-*.whl"))
    if not found:
        raise CheckError(
            f"there are no wheels in {wheels}; run `tools/gpu_check wheels` on a machine with a "
            "network, and copy the folder here"
        )
    _step(sys.executable, "-m", "venv", "--without-pip", str(folder))
    python = folder / "bin/python"
    (packages,) = folder.glob("lib/python*/site-packages")
    # The environment of an environment would not see the packages of the latter.
    theirs = [*site.getsitepackages(), site.getusersitepackages()]
    (packages / "torch.pth").write_text("".join(f"{path}\n" for path in theirs))
    pip = [str(python), f"{found[-1]}/pip", "install", "--quiet", "--no-index"]
    pip += [f"--find-links={wheels}", "--no-build-isolation", "--ignore-installed"]
    tools = [name for name in PACKAGES if name != "pip"]
    _step(*pip, *tools)
    _step(*pip, "--no-deps", "--editable", str(ROOT))
    return python


def _step(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CheckError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def run_tests(python: Path, results: Path, deadline: float, environ: dict[str, str]) -> None:
    """Run `tests/gpu`; the results are in JUnit's form, also if the time is over before the end."""
    left = max(1, int(deadline - time.monotonic()))
    command = [str(python), "-m", "pytest", "-n0", "-m", "gpu", "-p", "no:cacheprovider"]
    command += [f"--timeout={_EACH_TEST}", f"--session-timeout={left}", f"--junitxml={results}"]
    command += ["-o", "junit_family=xunit1"]  # the newer form has no figures of single tests
    with subprocess.Popen([*command, "tests/gpu"], cwd=ROOT, env=environ) as tests:
        try:
            # A session that is over its time ends after the test that is running.
            tests.wait(left + _FOR_THE_PAGE / 2)
        except subprocess.TimeoutExpired:
            tests.send_signal(signal.SIGINT)  # lets pytest write its results
            with contextlib.suppress(subprocess.TimeoutExpired):
                tests.wait(_FOR_THE_PAGE / 3)
            tests.kill()


def machine(torch: dict[str, str], python: Path, seconds: float) -> dict[str, str]:
    """Return the environment of the tests."""
    asked = subprocess.run(
        [python, "-c", _ASK_VERSIONS], capture_output=True, text=True, check=True
    )
    versions = {name: value for name, value in torch.items() if name != "devices" and value}
    with open("/proc/meminfo", encoding="utf-8") as file:
        kibibytes = int(file.readline().split()[1])
    return {
        "date": f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}, {seconds:.0f} seconds",
        **_gpu(),
        "processors": str(len(os.sched_getaffinity(0))),
        "memory": f"{kibibytes / (1 << 20):.0f} GiB",
        "kernel": platform.release(),
        "Python": platform.python_version(),
        **versions,
        **json.loads(asked.stdout),
    }


def _gpu() -> dict[str, str]:
    names = {"GPU": "name", "memory of the GPU": "memory.total", "driver": "driver_version"}
    command = ["nvidia-smi", f"--query-gpu={','.join(names.values())}", "--format=csv,noheader"]
    try:
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return {"GPU": "none"}
    return dict(zip(names, printed.splitlines()[0].split(", "), strict=True))


def check(wheels: Path, path: Path | None, *, is_stand_in: bool) -> bool:
    """Run everything and write the page; whether all is well.

    Args:
        wheels: the folder of wheels.
        path: the page; None prints it.
        is_stand_in: whether the processor stands in for the GPU, to try the tests themselves.

    Raises:
        CheckError: it cannot be run here.
    """
    began = time.monotonic()
    torch = ask_torch()
    if not torch["devices"] and not is_stand_in:
        raise CheckError(
            f"torch {torch['torch']} sees no GPU; run this on a machine with one, or try the tests "
            "themselves with --stand-in"
        )
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        python = install(Path(folder) / "environment", wheels)
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environ["PATH"] = f"{python.parent}{os.pathsep}{environ.get('PATH', os.defpath)}"
        environ.pop("GPU_STAND_IN", None)
        if is_stand_in:
            environ["GPU_STAND_IN"] = "cpu"
        results = Path(folder) / "results.xml"
        run_tests(python, results, began + LIMIT - _FOR_THE_PAGE, environ)
        outcomes = gpu_page.read_results(results.read_text()) if results.exists() else []
        where = machine(torch, python, time.monotonic() - began)
    text = gpu_page.make_page(gpu_page.Run(where, outcomes, is_stand_in))
    if path is None:
        print(text)
    else:
        path.write_text(text)
        print(f"written: {path}")
    return gpu_page.is_success(outcomes)


def main(argv: Sequence[str]) -> int:
    """Read the command line; the exit code is 0 if all is well, 1 if not, else 2."""
    parser = argparse.ArgumentParser(prog="tools/gpu_check", description=__doc__)
    parser.add_argument("--wheels", type=Path, default=WHEELS, help="the folder of wheels")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page that is written")
    parser.add_argument(
        "--stand-in",
        action="store_true",
        help="have the processor stand in for the GPU, and print the page: tries the tests",
    )
    commands = parser.add_subparsers(dest="command", metavar="wheels")
    wheels = commands.add_parser("wheels", help="download the wheels, which needs a network")
    wheels.add_argument("folder", type=Path, nargs="?", default=WHEELS)
    here = ".".join(platform.python_version_tuple()[:2])
    wheels.add_argument("--python-version", default=here, help=f"of that machine (default: {here})")
    wheels.add_argument("--processor", default=platform.machine(), help="such as aarch64")
    given = parser.parse_args(argv)
    try:
        if given.command == "wheels":
            make_wheels(given.folder, given.python_version, given.processor)
            return 0
        path = None if given.stand_in else given.page
        return 0 if check(given.wheels, path, is_stand_in=given.stand_in) else 1
    except CheckError as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
