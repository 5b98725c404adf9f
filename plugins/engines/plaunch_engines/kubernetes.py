"""The engine `kubernetes`: an Indexed Job, a JobSet or a TrainJob, each pod of which is a node."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from plaunch.cli import STDERR, parse
from plaunch.durations import SHUTDOWN_TIMEOUT
from plaunch.errors import UsageError

from plaunch_engines.kubernetes_manifests import CONTAINER, KINDS, PodJob, containers
from plaunch_engines.kubernetes_template import Template, load_yaml
from plaunch_engines.variables import TOKEN_VARIABLE, passed_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from plaunch.engines import EngineRequest

    from plaunch_engines.kubernetes_manifests import Manifest

_MODES = ("apply", "print")
# The image has its own settings of libraries, so only plaunch's are taken from here.
_USUAL = ("PET_*", "PLAUNCH_*")
# Kubeflow Trainer sets most of these and refuses them from others; they are options for all kinds.
# The last one changes the exit codes by which Kubernetes decides what happens to a pod.
_NOT_IN_PODS = (
    "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE",
    "PLAUNCH_EXIT_CODE",
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
            raise UsageError(
                f"--on=kubernetes:{request.where} is unknown; choose from {', '.join(_MODES)}"
            )
        if request.max_nodes is None:
            raise UsageError("--on=kubernetes needs a number of nodes (--nnodes)")
        if request.spares:
            raise UsageError(
                "--spares: Kubernetes replaces pods itself; use --nnodes=MIN:MAX to continue with "
                "fewer of them meanwhile"
            )
        self._name, self._max_nodes = request.job, request.max_nodes
        self._min_nodes = request.min_nodes or request.max_nodes
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
        manifests = self._job(arguments).manifests()
        if path:
            manifests = Template(path).apply(manifests)
        _check_image(manifests[-1])
        if self._mode == "print":
            show(load_yaml().safe_dump_all(manifests, sort_keys=False).rstrip())
            return 0
        from plaunch_engines.kubernetes_client import Cluster
        from plaunch_engines.kubernetes_job import SubmittedJob

        with Cluster(KINDS[self._kind], self._options.get("kubernetes_namespace") or "") as cluster:
            job = SubmittedJob(
                cluster,
                manifests,
                show,
                nodes=self._max_nodes,
                start_limit=float(self._options["start_limit"]),
                has_status=STDERR.can_show() and not STDERR.is_json,
            )
            return job.run()

    def close(self) -> None:
        """Do nothing; `launch` has ended."""

    def _job(self, arguments: Sequence[str]) -> PodJob:
        options = self._options
        patterns = [name for text in options["pass_env"] for name in text.split(",") if name]
        env = passed_environment(os.environ, patterns, usual=_USUAL)
        token = env.pop(TOKEN_VARIABLE)
        if "PET_NPROC_PER_NODE" in env:
            arguments = [f"--nproc-per-node={env['PET_NPROC_PER_NODE']}", *arguments]
        env = {name: value for name, value in env.items() if name not in _NOT_IN_PODS}
        timeout = parse(arguments, env).shutdown_timeout
        python = options.get("node_python")
        return PodJob(
            name=self._name,
            kind=self._kind,
            namespace=options.get("kubernetes_namespace") or "",
            image=options.get("kubernetes_image") or "",
            command=[python, "-m", "plaunch"] if python else ["plaunch"],
            arguments=arguments,
            env=env,
            token=token,
            min_nodes=self._min_nodes,
            max_nodes=self._max_nodes,
            resources=_resources(options.get("kubernetes_resources") or ""),
            shutdown_timeout=SHUTDOWN_TIMEOUT if timeout is None else timeout,
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
    if "trainer" in (job.get("spec") or {}):
        return
    own = [each for each in containers(job) if each.get("name") == CONTAINER]
    if not own:
        raise UsageError(
            f"--kubernetes-template removes container {CONTAINER} from the {job['kind']}, which "
            "runs the agent; change its parts instead"
        )
    if not own[0].get("image"):
        raise UsageError(
            "--on=kubernetes needs the image of the pods: --kubernetes-image, or in the template "
            f"the image of container {CONTAINER}"
        )
