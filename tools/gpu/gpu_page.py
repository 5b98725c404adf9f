"""Makes the page docs/gpu.md with the checks on a GPU and their results."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# The subject of each test in tests/gpu.
CHECKS = {
    "test_devices_are_counted": "`--nproc-per-node=gpu` counts as many GPUs as `nvidia-smi`",
    "test_a_device_is_chosen": (
        "`--devices=0`, with and without `--virtual-local-rank`, gives a worker the GPU that "
        "`nvidia-smi` calls 0"
    ),
    "test_a_device_that_is_not_there": "a missing device is refused before workers start",
    "test_workers_are_bound": "`--numa-binding=node` binds a worker to processors near the GPU",
    "test_eight_workers_share_the_device": "eight workers share the GPU, and meet with gloo",
    "test_one_worker_with_nccl": "one worker with NCCL",
    "test_preload": "`--preload=torch`: workers are forked, and initialize CUDA after the fork",
    "test_restart": "a restart with a CUDA context, with and without `--preload=torch`",
    "test_memory_is_free_after_sigkill": (
        "the memory of the GPU is free again after SIGKILL of a worker, of the launcher, or of the "
        "guard and then the launcher"
    ),
    "test_the_health_check": "`--health-check=gpu` passes on the real driver",
    "test_the_health_check_finds_used_memory": (
        "`--health-check=gpu` ends the job with 115 if memory is not free again after a failure"
    ),
    "test_an_endless_kernel": (
        "a kernel that never ends: hang report, stacks, and `--on-hang=restart`"
    ),
    "test_the_flight_recorder": (
        "`--flight-recorder`: NCCL dumps its operations when one times out"
    ),
    "test_a_worker_is_killed_in_a_step": (
        "`--inject` kills a worker in a step; the job resumes from its checkpoint"
    ),
}

HEAD = """\
# Checks on a GPU

<!-- search: NVIDIA, CUDA, GPU -->

The test suite of plaunch runs without GPUs. On a machine with one NVIDIA GPU, one command runs the
checks that need a GPU, and writes this page. It takes at most ten minutes.

## Run it

The machine needs a Python with torch 2.11 or later, built for CUDA, and `nvidia-smi`. It needs no
network and no other package. First create the folder of wheels (about 8 MB) on a machine with a
network, for the Python of the GPU machine:

    tools/gpu_check wheels --python-version=3.12

The wheels are in `build/gpu-wheels`, which git ignores. Copy the checkout with this folder to the
machine, and run:

    tools/gpu_check

`PYTHON` names another interpreter than `python3`. The command creates an environment in a temporary
folder, installs plaunch there from the source tree, runs `tests/gpu`, and removes the folder. The
exit code is 0 if checks passed, and none failed or was left out for lack of time. With
`--stand-in` the CPU replaces the GPU, to test the checks themselves, and the page is
printed.

"""
NOT_RUN = "**These checks have not been run yet.** No result on this page comes from a GPU.\n"
STAND_IN = "**The CPU replaced the GPU.** This run only shows that the checks work.\n"


@dataclass(frozen=True)
class Outcome:
    """The result of one test.

    Args:
        test: its function.
        case: its parameters, as pytest writes them.
        result: `passed`, `failed` or `skipped`.
        why: one line on a failure or a skip.
        figures: its measurements.
        seconds: its duration.
    """

    test: str
    case: str
    result: str
    why: str
    figures: tuple[str, ...]
    seconds: float

    @property
    def is_failure(self) -> bool:
        """Whether the test failed."""
        return self.result == "failed"


@dataclass(frozen=True)
class Run:
    """One run of the checks.

    Args:
        machine: names and values that describe the machine.
        outcomes: the results.
        is_stand_in: whether the CPU replaced the GPU.
    """

    machine: Mapping[str, str]
    outcomes: Sequence[Outcome] = field(default=())
    is_stand_in: bool = False


def read_results(text: str) -> list[Outcome]:
    """Read the outcomes from pytest's JUnit file."""
    return [_outcome(case) for case in ET.fromstring(text).iter("testcase")]  # noqa: S314 - our own


def _outcome(case: ET.Element) -> Outcome:
    test, _, parameters = case.get("name", "").partition("[")
    result, why = "passed", ""
    for element in case:
        if element.tag in ("failure", "error"):
            result, why = "failed", element.get("message", "")
        elif element.tag == "skipped" and result == "passed":
            result, why = "skipped", element.get("message", "")
    lines = why.strip().splitlines()
    figures = (one.get("value", "") for one in case.iter("property") if one.get("name") == "figure")
    return Outcome(
        test,
        parameters.removesuffix("]"),
        result,
        lines[0] if lines else "",
        tuple(figures),
        float(case.get("time", "0")),
    )


def is_success(outcomes: Sequence[Outcome]) -> bool:
    """Whether every check ran, none failed, and not all were skipped."""
    results = {outcome.result for outcome in outcomes}
    is_complete = set(CHECKS) <= {outcome.test for outcome in outcomes}
    return is_complete and "passed" in results and "failed" not in results


def make_page(run: Run | None) -> str:
    """Return the page after a run, or before the first one."""
    parts = [HEAD, "## Results\n\n"]
    if run is None:
        rows = [[text, "not run"] for text in CHECKS.values()]
        return "".join([*parts, NOT_RUN, "\n", _table(["check", "result"], rows)])
    if run.is_stand_in:
        parts += [STAND_IN, "\n"]
    parts += [_table(["", ""], [[name, value] for name, value in run.machine.items()]), "\n"]
    parts.append(_table(["check", "result", "measured", "seconds"], _rows(run.outcomes)))
    return "".join(parts)


def _rows(outcomes: Sequence[Outcome]) -> Iterable[list[str]]:
    known = {outcome.test for outcome in outcomes}
    for test, text in CHECKS.items():
        if test not in known:
            yield [text, "**not run**: out of time", "", ""]
        for outcome in outcomes:
            if outcome.test == test:
                result = f"**{outcome.result}**" if outcome.is_failure else outcome.result
                yield [
                    f"{text} ({outcome.case})" if outcome.case else text,
                    f"{result}: {outcome.why}" if outcome.why else result,
                    "; ".join(outcome.figures),
                    f"{outcome.seconds:.1f}",
                ]


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---" for _ in header], *rows]
    return "".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n" for cells in lines
    )


if __name__ == "__main__":
    print(make_page(None), end="")
