"""The engine `kubernetes`: an Indexed Job, a JobSet or a TrainJob, each pod of which is a node."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from plaunch.errors import UsageError

from plaunch_engines.kubernetes_manifests import CONTAINER, KINDS, PodJob
from plaunch_engines.kubernetes_template import apply_template, load_yaml, read_template
from plaunch_engines.plan import TOKEN_VARIABLE, passed_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from plaunch.engines import EngineRequest

    from plaunch_engines.kubernetes_manifests import Manifest

_MODES = ("apply", "print")
# The image has its own settings of libraries, so only plaunch's are taken from here.
_USUAL = ("PET_*", "PLAUNCH_*")
# Kubeflow Trainer sets these and refuses them from others; they are options for all kinds.
_NOT_IN_PODS = (
    "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE",
)  # fmt: skip
_RESOURCE = re.compile(r"([a-z0-9A-Z./_-]+)=([0-9][0-9.eE]*[A-Za-z]*)")


class KubernetesEngine:
    """Writes the manifests of a job, or creates them and follows the job.

    Args:
        request: `where` is `print` or `apply`; empty means `apply`.

    Raises:
        UsageError: an option is invalid.
    """

    has_own_files = True
    used_options = ("node_python", "pass_env", "start_limit")

    def __init__(self, request: EngineRequest) -> None:
        self._mode = request.where or "apply"
        if self._mode not in _MODES:
            raise UsageError(f"--on=kubernetes:{request.where}: choose from {', '.join(_MODES)}")
        if request.max_nodes is None:
            raise UsageError("--on=kubernetes needs a number of nodes (--nnodes)")
        if request.spares:
            raise UsageError(
                "--spares: Kubernetes replaces pods itself; use --nnodes=MIN:MAX to continue with "
                "fewer of them meanwhile"
            )
        self._request = request
        self._options = request.options
        self._kind = str(self._options["kubernetes_kind"])
        if self._kind == "trainjob" and request.min_nodes != request.max_nodes:
            raise UsageError(
                f"--nnodes={request.min_nodes}:{request.max_nodes}: a TrainJob has a fixed number "
                "of nodes; choose another --kubernetes-kind"
            )

    def launch(self, arguments: Sequence[str], show: Callable[[str], None]) -> int:
        """Print the manifests, or create them and follow the job; returns the exit code."""
        path = self._options.get("kubernetes_template")
        documents = read_template(path) if path else []
        manifests = apply_template(self._job(arguments).manifests(), documents)
        _check_image(manifests[-1])
        if self._mode == "print":
            show(load_yaml().safe_dump_all(manifests, sort_keys=False).rstrip())
            return 0
        from plaunch_engines.kubernetes_client import Cluster
        from plaunch_engines.kubernetes_job import SubmittedJob

        assert self._request.max_nodes is not None  # noqa: S101 - as checked above
        with Cluster(KINDS[self._kind], self._options.get("kubernetes_namespace") or "") as cluster:
            job = SubmittedJob(
                cluster,
                manifests,
                show,
                nodes=self._request.max_nodes,
                start_limit=float(self._options["start_limit"]),
            )
            return job.run()

    def close(self) -> None:
        """Do nothing; `launch` has ended."""

    def _job(self, arguments: Sequence[str]) -> PodJob:
        request, options = self._request, self._options
        patterns = [name for text in options["pass_env"] for name in text.split(",") if name]
        env = passed_environment(os.environ, patterns, usual=_USUAL)
        token = env.pop(TOKEN_VARIABLE)
        first = []
        if "PET_NPROC_PER_NODE" in env:
            first = [f"--nproc-per-node={env['PET_NPROC_PER_NODE']}"]
        python = options.get("node_python")
        return PodJob(
            name=request.job,
            kind=self._kind,
            namespace=options.get("kubernetes_namespace") or "",
            image=options.get("kubernetes_image") or "",
            command=[python, "-m", "plaunch"] if python else ["plaunch"],
            arguments=[*first, *arguments],
            env={name: value for name, value in env.items() if name not in _NOT_IN_PODS},
            token=token,
            min_nodes=request.min_nodes or 1,
            max_nodes=request.max_nodes or 1,
            resources=_resources(options.get("kubernetes_resources") or ""),
        )


def _resources(text: str) -> Mapping[str, str]:
    """Parse `NAME=AMOUNT,...`."""
    found = {}
    for part in filter(None, text.split(",")):
        match = _RESOURCE.fullmatch(part.strip())
        if match is None:
            raise UsageError(
                f"--kubernetes-resources: {part!r} is not NAME=AMOUNT, such as nvidia.com/gpu=8"
            )
        found[match[1]] = match[2]
    return found


def _check_image(job: Manifest) -> None:
    """Refuse a job without an image; the runtime of a TrainJob may have it."""
    spec = job["spec"]
    if "trainer" in spec:
        return
    if "replicatedJobs" in spec:
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    containers = spec["template"]["spec"]["containers"]
    if not any(each.get("image") for each in containers if each["name"] == CONTAINER):
        raise UsageError(
            "--on=kubernetes needs the image of the pods: --kubernetes-image, or in the template "
            f"the image of container {CONTAINER}"
        )
