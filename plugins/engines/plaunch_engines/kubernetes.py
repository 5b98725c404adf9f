"""The engine `kubernetes`: an Indexed Job, a JobSet or a TrainJob, each pod of which is a node."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from plaunch.cli import STDERR, parse
from plaunch.durations import SHUTDOWN_TIMEOUT
from plaunch.errors import UsageError

from plaunch_engines.kubernetes_manifests import (
    CONTAINER,
    KINDS,
    SHM,
    TOKEN_KEY,
    PodJob,
    containers,
)
from plaunch_engines.kubernetes_template import Template, load_yaml
from plaunch_engines.node_command import read_pythons
from plaunch_engines.variables import NAME, TOKEN_VARIABLE, passed_environment

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
# Those that Kubernetes needs as they are, so that --pass-env must not set them.
_REFUSED_IN_PODS = tuple(name for name in _NOT_IN_PODS if name != "PET_NPROC_PER_NODE")
_AMOUNT = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:[kMGTPE]|[KMGTPE]i)?")
_SECRET = re.compile(
    r"(?:(?P<variable>[^=:]+)=)?(?P<name>[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?):(?P<key>[\w.-]+)",
    re.ASCII,
)
_RESOURCE = re.compile(r"([a-z0-9A-Z./_-]+)=([0-9][0-9.eE]*[A-Za-z]*)")


class KubernetesEngine:
    """Writes the manifests of a job, or creates them and follows the job.

    Args:
        request: `where` is `print` or `apply`; empty means `apply`.

    Raises:
        UsageError: an option is invalid.
    """

    has_own_files = True
    can_replace = True
    used_options = ("exclude", "node_python", "pass_env", "pass_secret", "start_limit")

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
        self._exclude = request.exclude
        self._name, self._max_nodes = request.job, request.max_nodes
        self._min_nodes = request.min_nodes or request.max_nodes
        self._options = request.options
        self._kind = str(self._options["kubernetes_kind"])
        if self._kind == "trainjob" and self._options.get("kubernetes_shm"):
            raise UsageError(
                "--kubernetes-shm: the runtime of a TrainJob has its volumes; write one in the "
                "template (spec.runtimePatches)"
            )
        if self._kind == "trainjob" and self._exclude:
            raise UsageError(
                "--exclude: the runtime of a TrainJob decides where its pods run; write a "
                "nodeAffinity in the template (spec.runtimePatches)"
            )
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
            printed = [each for each in manifests if each["kind"] != "Secret"]
            show(load_yaml().safe_dump_all(printed, sort_keys=False).rstrip())
            if len(printed) < len(manifests):
                STDERR.say(_describe_token(manifests[0]), "INFO")
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
        env = passed_environment(
            os.environ, options["pass_env"], usual=_USUAL, refused=_REFUSED_IN_PODS
        )
        secrets = read_secrets(options["pass_secret"])
        token = env.pop(TOKEN_VARIABLE)
        if "PET_NPROC_PER_NODE" in env:
            arguments = [f"--nproc-per-node={env['PET_NPROC_PER_NODE']}", *arguments]
        not_passed = {*_NOT_IN_PODS, *secrets}
        env = {name: value for name, value in env.items() if name not in not_passed}
        timeout = parse(arguments, env).shutdown_timeout
        python, _ = read_pythons(options["node_python"])
        return PodJob(
            name=self._name,
            kind=self._kind,
            namespace=options.get("kubernetes_namespace") or "",
            image=options.get("kubernetes_image") or "",
            command=[python, "-m", "plaunch"] if python else ["plaunch"],
            arguments=arguments,
            env=env,
            secrets=secrets,
            token="" if TOKEN_VARIABLE in secrets else token,
            min_nodes=self._min_nodes,
            max_nodes=self._max_nodes,
            resources=_resources(options.get("kubernetes_resources") or ""),
            exclude=self._exclude,
            shm=_amount(options.get("kubernetes_shm") or SHM, "--kubernetes-shm"),
            shutdown_timeout=SHUTDOWN_TIMEOUT if timeout is None else timeout,
        )


def read_secrets(texts: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Read the values of `--pass-secret`: the name and the key of a Secret, by variable.

    Raises:
        UsageError: one is invalid, or a variable is named twice.
    """
    found: dict[str, tuple[str, str]] = {}
    for text in texts:
        match = _SECRET.fullmatch(text)
        if match is None:
            raise UsageError(
                f"--pass-secret: {text!r} is not VARIABLE=NAME:KEY, such as WANDB_API_KEY=wandb:key"
            )
        variable = match["variable"] or match["key"]
        if not NAME.fullmatch(variable):
            raise UsageError(
                f"--pass-secret={text}: {variable!r} is not the name of a variable; write "
                f"VARIABLE={text}"
            )
        if variable in found or variable in _NOT_IN_PODS:
            why = "set twice" if variable in found else "set for each pod by plaunch"
            raise UsageError(f"--pass-secret={text}: {variable} is {why}; leave this out")
        found[variable] = match["name"], match["key"]
    return found


def _describe_token(secret: Manifest) -> str:
    """Return which Secret a printed job needs, and the command that creates it."""
    metadata = secret["metadata"]
    where = f" --namespace={metadata['namespace']}" if metadata.get("namespace") else ""
    value = f"${TOKEN_VARIABLE}" if os.environ.get(TOKEN_VARIABLE) else "$(openssl rand -hex 32)"
    return (
        f"before you apply this, create its Secret, which is not printed: kubectl create secret "
        f'generic {metadata["name"]}{where} --from-literal={TOKEN_KEY}="{value}"'
    )


def _amount(text: str, option: str) -> str:
    """Check an amount of bytes."""
    if not _AMOUNT.fullmatch(text):
        raise UsageError(f"{option}: {text!r} is not an amount of memory, such as 64Gi")
    return text


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
