"""What the status of pods says about the nodes of a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plaunch.errors import ExitCode

from plaunch_engines.kubernetes_manifests import CONTAINER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from plaunch_engines.kubernetes_manifests import Manifest

# Reasons for which a container does not start, unless something changes.
_BAD_REASONS = {
    "CreateContainerConfigError", "CreateContainerError", "CrashLoopBackOff", "ErrImageNeverPull",
    "ErrImagePull", "ImageInspectError", "ImagePullBackOff", "InvalidImageName",
    "RegistryUnavailable", "RunContainerError", "StartError",
}  # fmt: skip
# Agents end with these because of what others did, or because they were ended.
_CONSEQUENCES = (
    ExitCode.RENDEZVOUS_TIMEOUT,
    ExitCode.RENDEZVOUS_CLOSED,
    ExitCode.CONTROL_PLANE_LOST,
    128 + 15,
    128 + 9,
)
_INDEX = "batch.kubernetes.io/job-completion-index"


@dataclass(frozen=True)
class PodStatus:
    """One pod.

    Args:
        name: of the pod.
        node: its hostname, which its replacement has as well.
        index: its number in the job.
        created: when, as text that can be compared.
        problem: why its container does not start; empty if there is no reason to worry.
        unscheduled: why no machine has been found for it; empty if there is one.
        is_started: whether its container runs or has run.
        code: the exit code of its container; None if it has not ended.
        ended: when it ended, as text that can be compared.
        reason: why the pod failed, other than by its exit code.
    """

    name: str
    node: str
    index: int
    created: str
    problem: str = ""
    unscheduled: str = ""
    is_started: bool = False
    code: int | None = None
    ended: str = ""
    reason: str = ""


def read_pod(pod: Manifest) -> PodStatus:
    """Read a pod as the API returns it."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    own = {**(metadata.get("labels") or {}), **(metadata.get("annotations") or {})}
    text = str(own.get(_INDEX, ""))
    state: dict[str, Any] = {}
    for container in status.get("containerStatuses") or []:
        if container["name"] == CONTAINER:
            state = container.get("state") or {}
    ended = state.get("terminated") or {}
    return PodStatus(
        name=metadata["name"],
        node=spec.get("hostname") or metadata["name"],
        index=int(text) if text.isdigit() else -1,
        created=str(metadata.get("creationTimestamp") or ""),
        problem=_problem(status),
        unscheduled=_unscheduled(status),
        is_started="running" in state or bool(ended),
        code=ended.get("exitCode"),
        ended=str(ended.get("finishedAt") or ""),
        reason=_reason(status),
    )


def choose_code(pods: Iterable[PodStatus]) -> int | None:
    """Return the exit code of the pod that failed first; None if no container has failed.

    Of each node, the last pod counts. Codes that follow from the failure of another node count
    less.
    """
    last = {pod.index: pod for pod in sorted(pods, key=lambda pod: pod.created)}
    failed = [pod for pod in last.values() if pod.code]
    first = min(
        failed, key=lambda pod: (pod.code in _CONSEQUENCES, pod.ended, pod.index), default=None
    )
    return None if first is None else first.code


def end_of_job(job: Manifest) -> tuple[bool | None, str]:
    """Return whether a job has succeeded, None while it runs, and why it has failed."""
    for condition in (job.get("status") or {}).get("conditions") or []:
        if condition.get("status") != "True":
            continue
        # Job and TrainJob, and the states of JobSet.
        if condition["type"] in ("Complete", "Completed"):
            return True, ""
        if condition["type"] == "Failed":
            return False, ": ".join(
                filter(None, (condition.get("reason"), condition.get("message")))
            )
    return None, ""


def _problem(status: Manifest) -> str:
    containers = [
        *(status.get("initContainerStatuses") or []),
        *(status.get("containerStatuses") or []),
    ]
    for container in containers:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in _BAD_REASONS:
            return _join(waiting)
    return ""


def _unscheduled(status: Manifest) -> str:
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return _join(condition)
    return ""


def _reason(status: Manifest) -> str:
    return _join(status) if status.get("phase") == "Failed" else ""


def _join(found: Manifest) -> str:
    texts = (found.get("reason"), found.get("message"))
    return " ".join(": ".join(filter(None, texts)).split())
