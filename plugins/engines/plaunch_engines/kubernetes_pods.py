"""What the status of pods says about the nodes of a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from plaunch.errors import ExitCode
from plaunch.texts import printable

from plaunch_engines.kubernetes_manifests import CONTAINER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from plaunch_engines.kubernetes_manifests import Manifest

# Reasons for which a container does not start, unless something changes.
# The kubelet refuses what the manifest forbids.
_ROOT_HINT = (
    "build the image with a USER that has a number, or set runAsUser in the securityContext of a "
    "template"
)
_BAD_REASONS = {
    "CreateContainerConfigError", "CreateContainerError", "CrashLoopBackOff", "ErrImageNeverPull",
    "ErrImagePull", "ImageInspectError", "ImagePullBackOff", "InvalidImageName",
    "RegistryUnavailable", "RunContainerError", "StartError",
}  # fmt: skip
_USUAL_REASONS = ("Completed", "Error")  # of a container's end, which say less than its exit code
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
class ContainerEnd:
    """One end of the container of a pod.

    Args:
        code: its exit code.
        at: when, as text that can be compared.
        reason: why, if there is more to say than the exit code, such as `OOMKilled`.
    """

    code: int
    at: str = ""
    reason: str = ""


@dataclass(frozen=True)
class PodStatus:
    """One pod.

    Args:
        name: of the pod.
        node: its hostname, which its replacement has as well.
        index: its number in the job.
        created: when, as text that can be compared.
        problem: why its container has not started; empty if there is no reason to worry.
        unscheduled: why no machine has been found for it; empty if there is one.
        is_started: whether its container runs or has run.
        is_running: whether its container runs.
        is_over: whether its container has ended and does not start again.
        ends: of its container, the last one first; at most two, as a container may be restarted.
        restarts: how often its container was restarted.
        disruption: why Kubernetes has ended the pod, such as an eviction; empty if it has not.
    """

    name: str
    node: str
    index: int
    created: str
    problem: str = ""
    unscheduled: str = ""
    is_started: bool = False
    is_running: bool = False
    is_over: bool = False
    ends: Sequence[ContainerEnd] = ()
    restarts: int = 0
    disruption: str = ""

    def describe_end(self) -> str:
        """Describe its last end, for a message."""
        text = f"{self.name} has ended"
        reasons = [self.disruption]
        if self.ends:
            text = f"{self.name} ended with {self.ends[0].code}"
            reasons.append(self.ends[0].reason)
        if self.restarts:
            text += f" (restart {self.restarts})"
        return ": ".join(filter(None, [text, *reasons]))


def read_pod(pod: Manifest) -> PodStatus:
    """Read a pod as the API returns it."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    own = {**(metadata.get("labels") or {}), **(metadata.get("annotations") or {})}
    index = str(own.get(_INDEX, ""))
    container = _container(status)
    state = container.get("state") or {}
    # Newest first; a container that waits for its restart has its end in `lastState`.
    ended = [
        each["terminated"]
        for each in (state, container.get("lastState") or {})
        if each.get("terminated")
    ]
    is_started = "running" in state or bool(ended)
    is_finished = status.get("phase") in ("Failed", "Succeeded")
    return PodStatus(
        name=metadata["name"],
        node=spec.get("hostname") or metadata["name"],
        index=int(index) if index.isdigit() else -1,
        created=str(metadata.get("creationTimestamp") or ""),
        problem="" if is_started else _problem(status),
        unscheduled=_condition(status, "PodScheduled", "False"),
        is_started=is_started,
        is_running="running" in state,
        is_over=is_finished or ("terminated" in state and spec.get("restartPolicy") == "Never"),
        ends=[_end(each) for each in ended],
        restarts=int(container.get("restartCount") or 0),
        disruption=(_join(status) if status.get("phase") == "Failed" else "")
        or _condition(status, "DisruptionTarget", "True"),
    )


def choose_code(pods: Iterable[PodStatus]) -> int | None:
    """Return the exit code of the pod that failed first; None if no container has failed.

    Of each node, the last pod counts. Codes that follow from the failure of another node count
    less.
    """
    last = {pod.index: pod for pod in sorted(pods, key=lambda pod: pod.created)}
    failed = [(end, pod.index) for pod in last.values() for end in _cause(pod)]
    if not failed:
        return None
    first, _ = min(failed, key=lambda one: (one[0].code in _CONSEQUENCES, one[0].at, one[1]))
    return first.code


def end_of_job(job: Manifest) -> tuple[bool | None, str]:
    """Return whether a job has succeeded, None while it runs, and why it has failed."""
    status = job.get("status") or {}
    # Job and TrainJob have the state Complete, JobSet has Completed.
    if any(_condition(status, state, "True") for state in ("Complete", "Completed")):
        return True, ""
    why = _condition(status, "Failed", "True")
    return (False, why) if why else (None, "")


def is_suspended(job: Manifest) -> bool:
    """Whether a job waits for a queue, or a user, that lets it continue."""
    return bool(_condition(job.get("status") or {}, "Suspended", "True"))


def count_pods(pods: Sequence[PodStatus], wanted: int) -> str:
    """Describe how many pods run, for a status line."""
    running = sum(pod.is_running for pod in pods)
    waiting = sum(bool(pod.unscheduled) for pod in pods)
    starting = sum(not (pod.is_started or pod.unscheduled or pod.is_over) for pod in pods)
    parts = [f"{running} of {wanted} pods running"]
    parts += [f"{starting} starting"] if starting else []
    parts += [f"{waiting} waiting for a machine"] if waiting else []
    return ", ".join(parts)


def _container(status: Manifest) -> Manifest:
    for container in status.get("containerStatuses") or []:
        if container["name"] == CONTAINER:
            return dict(container)
    return {}


def _end(ended: Manifest) -> ContainerEnd:
    is_usual = ended.get("reason") in _USUAL_REASONS and not ended.get("message")
    return ContainerEnd(
        code=int(ended.get("exitCode") or 0),
        at=str(ended.get("finishedAt") or ""),
        reason="" if is_usual else _join(ended),
    )


def _cause(pod: PodStatus) -> Sequence[ContainerEnd]:
    """Return the end that says most about the failure of a pod, if it has failed."""
    failed = [end for end in pod.ends if end.code]
    return ([end for end in failed if end.code not in _CONSEQUENCES] or failed)[:1]


def _problem(status: Manifest) -> str:
    containers = [
        *(status.get("initContainerStatuses") or []),
        *(status.get("containerStatuses") or []),
    ]
    for container in containers:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in _BAD_REASONS:
            text = _join(waiting)
            return f"{text}; {_ROOT_HINT}" if "runAsNonRoot" in text else text
    return ""


def _condition(status: Manifest, kind: str, value: str) -> str:
    """Return the reason of a condition that has this value, or else its kind; empty without one."""
    for condition in status.get("conditions") or []:
        if condition.get("type") == kind and condition.get("status") == value:
            return _join(condition) or kind
    return ""


def _join(found: Manifest) -> str:
    texts = (found.get("reason"), found.get("message"))
    return printable(" ".join(": ".join(filter(None, texts)).split()))
