"""The manifests of a job on Kubernetes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from plaunch.durations import SHUTDOWN_TIMEOUT
from plaunch.errors import ExitCode

from plaunch_engines.variables import TOKEN_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Manifest = dict[str, Any]

_HOST = "kubernetes.io/hostname"
_INSTANCE = "app.kubernetes.io/instance"
CONTAINER = "node"  # also the name of JobSet's replicated job; those of Kubeflow's runtimes
TOKEN_KEY = "token"  # noqa: S105 - in the Secret
SHM = "64Gi"  # the default limit of /dev/shm, without which it is half of the machine's memory
_KEPT = 3600  # seconds that a finished job stays, for kubectl
_GRACE = 30  # seconds for an agent to end after its workers
_MAX_GRACE = 7 * 86400  # seconds, for agents that never kill their workers
_DEFAULT_GRACE = 30  # seconds for a pod to end, if nothing is set
_REPLACEMENTS = 3  # of each pod; those of pods that were evicted do not count
# Other pods may help after these: the rendezvous, the machine or its memory was the problem, or
# something other than this command has ended the pod, such as a queue that suspends the job.
_REPLACED_CODES = (
    ExitCode.RENDEZVOUS_TIMEOUT,
    ExitCode.CONTROL_PLANE_LOST,
    ExitCode.UNKILLABLE_WORKER,
    ExitCode.NODE_EXCLUDED,
    ExitCode.HANG,
    137,
    143,
)


@dataclass(frozen=True)
class JobKind:
    """A kind of objects that run a job.

    Args:
        kind: its name in manifests.
        api: its group and version.
        plural: its name in the API.
        selector: the labels of the pods that run agents; `{name}` stands for the object's name.
        job: the name of the Job that creates these pods, with `{name}` as above.
        product: what has to be installed in the cluster for it.
    """

    kind: str
    api: str
    plural: str
    selector: str
    job: str
    product: str


_JOB_OF_SET = f"{{name}}-{CONTAINER}-0"
KINDS = {
    "job": JobKind(
        kind="Job",
        api="batch/v1",
        plural="jobs",
        selector="batch.kubernetes.io/job-name={name}",
        job="{name}",
        product="Kubernetes",
    ),
    "jobset": JobKind(
        kind="JobSet",
        api="jobset.x-k8s.io/v1alpha2",
        plural="jobsets",
        selector="jobset.sigs.k8s.io/jobset-name={name}",
        job=_JOB_OF_SET,
        product="JobSet",
    ),
    # Its pods belong to a JobSet of the same name, which may also have pods that fetch data.
    "trainjob": JobKind(
        kind="TrainJob",
        api="trainer.kubeflow.org/v1alpha1",
        plural="trainjobs",
        selector=(
            "jobset.sigs.k8s.io/jobset-name={name},"
            f"jobset.sigs.k8s.io/replicatedjob-name={CONTAINER}"
        ),
        job=_JOB_OF_SET,
        product="Kubeflow Trainer",
    ),
}


@dataclass(frozen=True, kw_only=True)
class PodJob:
    """A job of which each pod runs one agent.

    Args:
        name: of all objects.
        kind: a key of `KINDS`.
        namespace: empty for that of the context.
        image: of the pods; empty if the template has it.
        command: the program of the pods.
        arguments: its arguments.
        env: variables of the pods, without the token.
        secrets: the name and the key of a Secret for each variable that has its value from there.
        token: the token of the job; empty if `secrets` has it.
        shm: the limit of /dev/shm.
        exclude: the names of machines that are not used.
        min_nodes: the smallest number of pods with which the job runs.
        max_nodes: the number of pods.
        resources: resources of each pod, by name.
        shutdown_timeout: seconds that an agent gives its workers to end.
    """

    name: str
    kind: str
    arguments: Sequence[str]
    token: str
    min_nodes: int
    max_nodes: int
    namespace: str = ""
    image: str = ""
    command: Sequence[str] = ("plaunch",)
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    shm: str = SHM
    exclude: Sequence[str] = ()
    resources: Mapping[str, str] = field(default_factory=dict)
    shutdown_timeout: float = SHUTDOWN_TIMEOUT

    def manifests(self) -> list[Manifest]:
        """Return what is to be created; the last one is the job."""
        created = {"job": self._job, "jobset": self._job_set, "trainjob": self._train_job}
        first = [self._secret()] if self.token else []
        if self.kind == "job":  # the others create it
            first.append(self._service())
        return [*first, created[self.kind]()]

    def _object(self, kind: str, api: str, **fields: Any) -> Manifest:
        metadata: Manifest = {"name": self.name}
        if self.namespace:
            metadata["namespace"] = self.namespace
        metadata["labels"] = self._labels()
        return {"apiVersion": api, "kind": kind, "metadata": metadata, **fields}

    def _labels(self) -> Manifest:
        return {
            "app.kubernetes.io/name": "plaunch",
            _INSTANCE: self.name,
            "app.kubernetes.io/managed-by": "plaunch",
        }

    def _secret(self) -> Manifest:
        return self._object("Secret", "v1", type="Opaque", stringData={TOKEN_KEY: self.token})

    def _service(self) -> Manifest:
        selector = {"batch.kubernetes.io/job-name": self.name}
        return self._object(
            "Service",
            "v1",
            spec={"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector},
        )

    def _job(self) -> Manifest:
        kind = KINDS["job"]
        spec = {"ttlSecondsAfterFinished": _KEPT, **self._job_spec(subdomain=self.name)}
        return self._object(kind.kind, kind.api, spec=spec)

    def _job_set(self) -> Manifest:
        kind = KINDS["jobset"]
        template = {"metadata": {"labels": self._labels()}, "spec": self._job_spec()}
        job = {"name": CONTAINER, "replicas": 1, "template": template}
        network = {"enableDNSHostnames": True, "publishNotReadyAddresses": True}
        return self._object(
            kind.kind,
            kind.api,
            spec={
                "network": network,
                "replicatedJobs": [job],
                "ttlSecondsAfterFinished": _KEPT,
            },
        )

    def _train_job(self) -> Manifest:
        kind = KINDS["trainjob"]
        trainer = {
            "numNodes": self.max_nodes,
            **self._program(),
            **({"resourcesPerNode": self._resources()} if self.resources else {}),
        }
        return self._object(
            kind.kind,
            kind.api,
            spec={"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer},
        )

    def _job_spec(self, **pod: str) -> Manifest:
        counts: Manifest = {"completions": self.max_nodes, "parallelism": self.max_nodes}
        codes = list(_REPLACED_CODES)
        disrupted = {"type": "DisruptionTarget", "status": "True"}
        if self.min_nodes < self.max_nodes:
            # A pod that arrives after the end of the job ends with 112.
            counts["successPolicy"] = {"rules": [{"succeededIndexes": "0"}]}
            codes.append(ExitCode.RENDEZVOUS_CLOSED)
        return {
            "completionMode": "Indexed",
            **counts,
            # A limit for all of them would delay pods for up to ten minutes after several have
            # ended at once, as they do when the job loses its store.
            "backoffLimitPerIndex": _REPLACEMENTS,
            "maxFailedIndexes": 0,
            "podFailurePolicy": {
                "rules": [
                    {"action": "Ignore", "onPodConditions": [disrupted]},
                    {
                        "action": "FailJob",
                        "onExitCodes": {
                            "containerName": CONTAINER,
                            "operator": "NotIn",
                            "values": sorted(map(int, codes)),
                        },
                    },
                ]
            },
            "template": {
                "metadata": {"labels": self._labels()},
                "spec": {**pod, **self._pod_spec()},
            },
        }

    def _pod_spec(self) -> Manifest:
        container: Manifest = {"name": CONTAINER, **self._program()}
        seconds = min(self.shutdown_timeout + _GRACE, _MAX_GRACE)
        if self.resources:
            container["resources"] = self._resources()
        container["securityContext"] = {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
        container["volumeMounts"] = [{"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108
        return {
            "restartPolicy": "Never",
            # A job needs nothing of the API, and the rest is what restricted namespaces require.
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            # Each on a machine of its own, if there are enough.
            "topologySpreadConstraints": [
                {
                    "maxSkew": 1,
                    "topologyKey": _HOST,
                    "whenUnsatisfiable": "ScheduleAnyway",
                    "labelSelector": {"matchLabels": {_INSTANCE: self.name}},
                }
            ],
            "terminationGracePeriodSeconds": math.ceil(seconds),
            **({"affinity": self._affinity()} if self.exclude else {}),
            "containers": [container],
            # The default of 64 MiB is too small for data loaders.
            "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": self.shm}}],
        }

    def _affinity(self) -> Manifest:
        excluded = {"key": _HOST, "operator": "NotIn", "values": [*self.exclude]}
        terms = [{"matchExpressions": [excluded]}]
        required = {"nodeSelectorTerms": terms}
        return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}

    def _program(self) -> Manifest:
        env: list[Manifest] = [
            {"name": name, "value": escape(value)} for name, value in sorted(self.env.items())
        ]
        if "PET_RDZV_ID" not in self.env:  # it differs each time that the manifest is applied
            label = "metadata.labels['batch.kubernetes.io/controller-uid']"
            source: Manifest = {"fieldRef": {"fieldPath": label}}
            env.append({"name": "PET_RDZV_ID", "valueFrom": source})
        secrets = dict(self.secrets)
        if self.token:
            secrets[TOKEN_VARIABLE] = self.name, TOKEN_KEY
        for variable, (name, key) in sorted(secrets.items()):
            source = {"secretKeyRef": {"name": name, "key": key}}
            env.append({"name": variable, "valueFrom": source})
        return {
            **({"image": self.image} if self.image else {}),
            "command": [escape(word) for word in self.command],
            "args": [*self._first_arguments(), *map(escape, self.arguments)],
            "env": env,
        }

    def _first_arguments(self) -> list[str]:
        """Return the options that precede those of the user, which have priority."""
        low, high = self.min_nodes, self.max_nodes
        nodes = f"--nnodes={high}" if low == high else f"--nnodes={low}:{high}"
        if self.kind != "trainjob":
            return ["--scheduler=kubernetes", nodes]
        # Kubeflow Trainer sets PET_NODE_RANK, PET_MASTER_ADDR and PET_MASTER_PORT.
        defaults = {
            "PET_RDZV_BACKEND": "--rdzv-backend=c10d",
            "PET_RDZV_ENDPOINT": "--rdzv-endpoint=$(PET_MASTER_ADDR):$(PET_MASTER_PORT)",
        }
        return [nodes, *(option for name, option in defaults.items() if name not in self.env)]

    def _resources(self) -> Manifest:
        return {"limits": dict(self.resources)}


def pod_template(job: Manifest) -> Manifest | None:
    """Return the template of the pods of a job; None if it has none, as a TrainJob."""
    spec = job.get("spec") or {}
    for each in spec.get("replicatedJobs") or ():
        spec = (each.get("template") or {}).get("spec") or {}
        break
    template: Manifest | None = spec.get("template")
    return template


def containers(job: Manifest) -> list[Manifest]:
    """Return the containers of the pods of a job."""
    spec = (pod_template(job) or {}).get("spec") or {}
    return list(spec.get("containers") or ())


def grace(job: Manifest) -> float:
    """Return the seconds that the pods of a job have to end."""
    spec = (pod_template(job) or {}).get("spec") or {}
    return float(spec.get("terminationGracePeriodSeconds") or _DEFAULT_GRACE)


def escape(text: str) -> str:
    """Protect a text from the kubelet, which replaces `$(NAME)`, and `$$` by `$`."""
    return text.replace("$", "$$")
