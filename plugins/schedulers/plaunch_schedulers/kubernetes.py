"""Kubernetes: the pods of an Indexed Job, one launcher in each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.errors import UsageError
from plaunch.scheduling import Allocation

from plaunch_schedulers.numbers import find_number

if TYPE_CHECKING:
    from collections.abc import Mapping

_NNODES = (
    "Kubernetes tells a pod its index, but not how many pods there are; give --nnodes, or set "
    "PET_NNODES in the manifest to the number of the Job's completions"
)
_NO_NAME = (
    "the name of the Job is in none of JOB_NAME and HOSTNAME (which ends in the index, unless the "
    "pod uses the host's network); set JOB_NAME in the manifest from the label "
    "batch.kubernetes.io/job-name, or give {option}"
)


def find_kubernetes_allocation(environ: Mapping[str, str]) -> Allocation:
    """The pod of an Indexed Job: `JOB_COMPLETION_INDEX` and the Job's name.

    The name is in `JOB_NAME`, if the manifest sets it, else it is the host name without the index.
    The endpoint is the pod with index 0, as a headless Service of the Job's own name makes it
    known; Kubernetes does not tell a pod how many there are.

    Raises:
        UsageError: this is not a pod of an Indexed Job.
    """
    index = find_number(environ, "JOB_COMPLETION_INDEX")
    if index is None:
        raise UsageError(
            "--scheduler=kubernetes, but JOB_COMPLETION_INDEX is not set: this is no pod of an "
            "Indexed Job; set completionMode: Indexed in the Job's spec, or leave the option out "
            "(what Kubeflow starts has all it needs in PET_* variables)"
        )
    name, variable = _job_name(environ, index.value)
    if not name:
        return Allocation(
            node_rank=index.value,
            sources={"node_rank": index.variable},
            missing={
                "nnodes": _NNODES,
                "endpoint": _NO_NAME.format(option="--rdzv-endpoint"),
                "run_id": _NO_NAME.format(option="--rdzv-id"),
            },
        )
    return Allocation(
        node_rank=index.value,
        endpoint=f"{name}-0.{name}",
        run_id=name,
        sources={
            "node_rank": index.variable,
            "endpoint": f"{variable}, and the Service of that name",
            "run_id": variable,
        },
        missing={"nnodes": _NNODES},
    )


def _job_name(environ: Mapping[str, str], index: int) -> tuple[str, str]:
    """The name of the Job, and the variable that has it."""
    name = environ.get("JOB_NAME", "")
    if name:
        return name, "JOB_NAME"
    host = environ.get("HOSTNAME", "").partition(".")[0]
    return host.removesuffix(f"-{index}") if host.endswith(f"-{index}") else "", "HOSTNAME"
