"""A job in a cluster: created, followed to its end, or deleted."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from plaunch.cli import STDERR
from plaunch.errors import PlaunchError

from plaunch_engines.driver import StartError
from plaunch_engines.kubernetes_client import ClusterError
from plaunch_engines.kubernetes_logs import PodLogs
from plaunch_engines.kubernetes_manifests import CONTAINER
from plaunch_engines.kubernetes_pods import choose_code, end_of_job, read_pod

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from plaunch_engines.kubernetes_client import Cluster
    from plaunch_engines.kubernetes_manifests import Manifest
    from plaunch_engines.kubernetes_pods import PodStatus

_INTERVAL = 1.0  # seconds between two requests for the status
_LOGS_WAIT = 15.0  # seconds for the last lines
_DELETE_WAIT = 90.0  # seconds for pods to end, more than their grace
_NO_PODS = 5.0  # seconds without enough pods, after which warnings are looked up


class SubmittedJob:
    """One job.

    Args:
        cluster: where it runs.
        manifests: what to create; the last one is the job.
        show: prints a line on standard output.
        nodes: the number of its pods.
        start_limit: seconds for a container that cannot start.
        interval: seconds between two requests for the status.
        delete_wait: seconds for pods to end after the job is deleted.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        manifests: Sequence[Manifest],
        show: Callable[[str], None],
        *,
        nodes: int,
        start_limit: float,
        interval: float = _INTERVAL,
        delete_wait: float = _DELETE_WAIT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        *self._others, self._manifest = manifests
        self._cluster = cluster
        self._nodes = nodes
        self._start_limit = start_limit
        self._interval = interval
        self._delete_wait = delete_wait
        self._clock = clock
        self._began = clock()
        self._logs = PodLogs(cluster, CONTAINER, show, self._say)
        self._pods: dict[str, PodStatus] = {}
        self._bad_since: dict[str, float] = {}
        self._said: set[str] = set()
        self.name = str(self._manifest["metadata"]["name"])
        self.title = f"{self._manifest['kind']} {self.name}"

    def run(self) -> int:
        """Create the job, follow it, and return its exit code.

        KeyboardInterrupt deletes the job, and so does an error before its pods run.

        Raises:
            PlaunchError: it cannot be created or followed, or its pods cannot start.
        """
        for manifest in (self._manifest, *self._others):
            self._cluster.create(manifest, is_trial=True)
        try:
            self._create()
            return self._follow()
        except (KeyboardInterrupt, StartError):
            self._delete()
            raise

    def _create(self) -> None:
        """Create the job, then what belongs to it and is deleted with it."""
        try:
            job = self._cluster.create(self._manifest)
            owner = {
                **{key: job[key] for key in ("apiVersion", "kind")},
                **{key: job["metadata"][key] for key in ("name", "uid")},
            }
            for manifest in self._others:
                metadata = {**manifest["metadata"], "ownerReferences": [owner]}
                self._cluster.create({**manifest, "metadata": metadata})
        except PlaunchError:
            self._delete()
            raise
        self._say(f"created {self.title} in namespace {self._cluster.namespace}")

    # --- while it runs ----------------------------------------------------------------------------

    def _follow(self) -> int:
        while True:
            try:
                job = self._cluster.find(self.name)
                pods = [read_pod(pod) for pod in self._cluster.pods(self.name)]
            except ClusterError as error:
                if not error.is_temporary:
                    raise ClusterError(f"{error}; {self.title} continues", error.status) from error
                self._say(f"{error}; {self.title} continues, and so does this command")
                time.sleep(self._interval)
                continue
            if job is None:
                self._logs.finish(_LOGS_WAIT)
                raise PlaunchError(f"{self.title} was deleted by another program")
            self._update(pods)
            succeeded, why = end_of_job(job)
            if succeeded is not None:
                return self._conclude(succeeded, why)
            self._check_start(pods)
            time.sleep(self._interval)

    def _update(self, pods: Sequence[PodStatus]) -> None:
        for pod in pods:
            before = self._pods.get(pod.name)
            self._pods[pod.name] = pod
            if pod.is_started:
                self._bad_since.pop(pod.name, None)
                self._logs.follow(pod.name, pod.node)
            elif pod.problem:
                self._bad_since.setdefault(pod.name, self._clock())
                self._say(f"{pod.name} does not start: {pod.problem}")
            elif pod.unscheduled:
                self._say(f"pods wait for machines: {pod.unscheduled}")
            if (pod.code is not None or pod.reason) and not (
                before and (before.code is not None or before.reason)
            ):
                self._logs.end(pod.name)
                if pod.code or pod.reason:
                    ended = f"ended with {pod.code}" if pod.code else "failed"
                    self._say(f"{pod.name} {ended}{pod.reason and ': '}{pod.reason}")
        present = {pod.name for pod in pods}
        for name in self._pods.keys() - present:  # evicted, or replaced
            self._logs.end(name)
            self._bad_since.pop(name, None)
        if len(pods) < self._nodes and self._clock() - self._began >= _NO_PODS:
            self._say_warnings()

    def _check_start(self, pods: Sequence[PodStatus]) -> None:
        """Raise an error if a container has not started for too long."""
        for pod in pods:
            since = self._bad_since.get(pod.name)
            if since is not None and self._clock() - since >= self._start_limit:
                raise StartError(
                    f"{self.title} was deleted: {pod.name} has not started within "
                    f"{self._start_limit:g} s (--start-limit): {pod.problem}"
                )

    def _say_warnings(self) -> None:
        try:
            warnings = self._cluster.warnings(self.name)
        except ClusterError:  # without the right to read events
            return
        if warnings:
            self._say(f"{self.title}: {warnings[-1]}")

    def _conclude(self, succeeded: bool, why: str) -> int:
        if not self._logs.finish(_LOGS_WAIT):
            self._say(f"some lines are missing; see kubectl logs -l {self._selector()}")
        if succeeded:
            return 0
        self._say(f"{self.title} has failed{why and ': '}{why}")
        code = choose_code(self._pods.values())
        if code is None:
            raise PlaunchError(f"{self.title} has failed, and no pod has an exit code")
        return code

    # --- its end ----------------------------------------------------------------------------------

    def _delete(self) -> None:
        """Delete the job, and wait for its pods to end; their last lines are shown."""
        self._say(f"deleting {self.title}; the next stop signal ends this command at once")
        until = self._clock() + self._delete_wait
        is_deleted = False
        pods: list[str] = []
        while self._clock() < until:
            try:
                if not is_deleted:
                    self._cluster.delete(self.name)
                    is_deleted = True
                pods = [str(pod["metadata"]["name"]) for pod in self._cluster.pods(self.name)]
                if not pods and self._cluster.find(self.name) is None:
                    self._logs.finish(1.0)
                    return
            except ClusterError as error:
                self._say(str(error))
                if not error.is_temporary:
                    break
            time.sleep(min(self._interval, 0.5))
        self._say(
            f"{self.title} has not ended within {self._delete_wait:g} s"
            f"{': ' if pods else ''}{', '.join(pods)}; see kubectl get pods -l {self._selector()}"
        )

    def _selector(self) -> str:
        selector = self._cluster.kind.selector.format(name=self.name)
        return f"{selector} -n {self._cluster.namespace}"

    def _say(self, text: str) -> None:
        """Write a message to stderr, once."""
        if text not in self._said:
            self._said.add(text)
            STDERR.say(text, "INFO")
