"""Kubernetes: the pods of an Indexed Job, one launcher in each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from plaunch.errors import UsageError
from plaunch.scheduling import Allocation

from plaunch_schedulers.numbers import find_number

if TYPE_CHECKING:
    from collections.abc import Mapping

_NNODES = (
    "Kubernetes gives a pod its index, but not the number of pods; give --nnodes, or set "
    "PET_NNODES in the manifest to the number of the Job's completions"
)
_NO_NAME = (
    "the name of the Job is neither in JOB_NAME nor in HOSTNAME (which ends in the index, unless "
    "the pod uses the host's network); set JOB_NAME in the manifest from the label "
    "batch.kubernetes.io/job-name, or give {option}"
)
_NO_SUBDOMAIN = (
    "this pod has no subdomain, so no pod of the Job has a name that others can find; set "
    "subdomain in the pods' spec to the name of a headless Service that selects them, or give "
    "--rdzv-endpoint"
)

# The kubelet writes it, with the pod's own name, unless the pod uses the host's network.
_HOSTS = Path("/etc/hosts")
_MANAGED = "# Kubernetes-managed hosts file."


def find_kubernetes_allocation(environ: Mapping[str, str], hosts: Path = _HOSTS) -> Allocation:
    """Return the allocation of a pod of an Indexed Job.

    The index is `JOB_COMPLETION_INDEX`. The name of the Job is in `JOB_NAME`, if the manifest sets
    it; otherwise it is the hostname without the index. The endpoint is the pod with index 0, in the
    Service that `hosts` lists for this pod, which for a JobSet differs from the Job's; otherwise in
    a Service with the Job's name. Kubernetes does not provide the number of pods.

    Raises:
        UsageError: this is not a pod of an Indexed Job.
    """
    index = find_number(environ, "JOB_COMPLETION_INDEX")
    if index is None:
        raise UsageError(
            "--scheduler=kubernetes, but JOB_COMPLETION_INDEX is not set: this is not a pod of an "
            "Indexed Job; set completionMode: Indexed in the Job's spec, or leave the option out "
            "(pods that Kubeflow starts have everything in PET_* variables)"
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
    service = _service(environ.get("HOSTNAME", "").partition(".")[0], hosts)
    if service == "":
        return Allocation(
            node_rank=index.value,
            run_id=name,
            sources={"node_rank": index.variable, "run_id": variable},
            missing={"nnodes": _NNODES, "endpoint": _NO_SUBDOMAIN},
        )
    where = "the Service of that name" if service is None else f"its Service in {hosts}"
    return Allocation(
        node_rank=index.value,
        endpoint=f"{name}-0.{service or name}",
        run_id=name,
        sources={
            "node_rank": index.variable,
            "endpoint": f"{variable}, and {where}",
            "run_id": variable,
        },
        missing={"nnodes": _NNODES},
    )


def _service(host: str, hosts: Path) -> str | None:
    """Return the Service that gives this pod a name; empty if there is none, None if unknown."""
    try:
        lines = hosts.read_text(errors="replace").splitlines()
    except OSError:
        return None
    if not host or not lines or lines[0] != _MANAGED:
        return None
    names = [line.split()[1:] for line in lines[1:] if not line.startswith("#")]
    for name, *_ in (found for found in names if host in found):
        # A pod with a subdomain is listed as HOST.SUBDOMAIN.NAMESPACE.svc.DOMAIN HOST.
        return name.removeprefix(host).partition(".")[2].partition(".")[0]
    return None


def _job_name(environ: Mapping[str, str], index: int) -> tuple[str, str]:
    """Return the name of the Job, and the variable that contains it."""
    name = environ.get("JOB_NAME", "")
    if name:
        return name, "JOB_NAME"
    host = environ.get("HOSTNAME", "").partition(".")[0]
    return host.removesuffix(f"-{index}") if host.endswith(f"-{index}") else "", "HOSTNAME"
