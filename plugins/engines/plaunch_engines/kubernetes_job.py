"""A job in a cluster: created, followed to its end, or deleted."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from plaunch.cli import STDERR
from plaunch.errors import ThreadStartError

from plaunch_engines.errors import NodesLostError, StartError
from plaunch_engines.kubernetes_client import ClusterError
from plaunch_engines.kubernetes_logs import PodLogs
from plaunch_engines.kubernetes_manifests import grace
from plaunch_engines.kubernetes_pods import (
    choose_code,
    count_pods,
    end_of_job,
    is_suspended,
    read_pod,
)
from plaunch_engines.output import format_elapsed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from plaunch_engines.kubernetes_client import Cluster
    from plaunch_engines.kubernetes_manifests import Manifest
    from plaunch_engines.kubernetes_pods import PodStatus

_INTERVAL = 1.0  # seconds between two requests for the status
_MOST_PODS = 100  # that are listed in this interval; with more, it is longer
_LOGS_WAIT = 15.0  # seconds without a line at the end
_DELETE_WAIT = 30.0  # seconds for pods to be gone, after their grace
_DELETE_INTERVAL = 0.5  # seconds between two requests for what is left
_NO_PODS = 5.0  # seconds without enough pods, after which warnings are looked up
_WARNINGS_INTERVAL = 10.0  # seconds between two requests for warnings


class SubmittedJob:
    """One job.

    Args:
        cluster: where it runs.
        manifests: what to create; the last one is the job.
        show: prints a line on standard output.
        nodes: the number of its pods.
        start_limit: seconds for a container that cannot start.
        has_status: whether a status line is shown.
        clock: a monotonic clock, in seconds.
        sleep: waits for some seconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        manifests: Sequence[Manifest],
        show: Callable[[str], None],
        *,
        nodes: int,
        start_limit: float,
        has_status: bool = False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        *self._others, self._manifest = manifests
        self._cluster = cluster
        self._nodes = nodes
        self._start_limit = start_limit
        self._has_status = has_status
        self._clock = clock
        self._sleep = sleep
        self._began = self._warnings_at = clock()
        self._logs = PodLogs(cluster, show, lambda text: self._say_once(text, text))
        self._pods: dict[str, PodStatus] = {}
        self._bad_since: dict[str, float] = {}
        self._said: set[str] = set()
        self._outage = ""  # why the cluster does not answer
        self._may_exist = False
        self._is_deleted = False
        self.name = str(self._manifest["metadata"]["name"])
        self.title = f"{self._manifest['kind']} {self.name}"

    def run(self) -> int:
        """Create the job, follow it, and return its exit code.

        KeyboardInterrupt deletes the job, unless it is over already; so does an error before its
        pods run.

        Raises:
            StartError: it cannot be created, or its pods cannot start; nothing is left.
            NodesLostError: it was deleted, or has failed without an exit code.
            ClusterError: it cannot be followed any more, and continues.
        """
        try:
            self._begin()
            return self._follow()
        except KeyboardInterrupt:
            code = self._end_at_signal()
            if code is None:
                raise
            return code
        except (StartError, ThreadStartError):
            if self._may_exist:
                self._delete()
            raise
        finally:
            self._logs.show_status("")

    # --- its begin --------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Check the manifests and the rights of the user, and create the job.

        Raises:
            StartError: the server refuses something, or cannot be reached.
        """
        try:
            for manifest in (self._manifest, *self._others):
                self._try(manifest)
            self._cluster.check_rights(self.name)
            self._create()
        except ClusterError as error:
            raise StartError(f"nothing was started: {error}") from error
        self._say(f"created {self.title} in namespace {self._cluster.namespace}")

    def _try(self, manifest: Manifest) -> None:
        """Let the server check a manifest, of which it may not know all fields."""
        reply = self._cluster.create(manifest, is_trial=True)
        wanted, known = manifest.get("spec") or {}, reply.get("spec") or {}
        ignored = [name for name, value in wanted.items() if value and name not in known]
        if ignored:
            raise ClusterError(
                f"{self._cluster.host} ignores spec.{ignored[0]} of {manifest['kind']} "
                f"{self.name}: the cluster needs a newer version of Kubernetes"
            )

    def _create(self) -> None:
        """Create the job, then what belongs to it and is deleted with it."""
        self._may_exist = True
        try:
            job = self._cluster.create(self._manifest)
        except ClusterError as error:
            self._may_exist = error.is_temporary  # otherwise the server has refused it
            raise
        owner = {
            **{key: job[key] for key in ("apiVersion", "kind")},
            **{key: job["metadata"][key] for key in ("name", "uid")},
        }
        for manifest in self._others:
            metadata = {**manifest["metadata"], "ownerReferences": [owner]}
            self._cluster.create({**manifest, "metadata": metadata})

    # --- while it runs ----------------------------------------------------------------------------

    def _follow(self) -> int:
        interval = _INTERVAL * max(self._nodes / _MOST_PODS, 1)
        while True:
            try:
                job = self._cluster.find(self.name)
                pods = [read_pod(pod) for pod in self._cluster.pods(self.name)]
            except ClusterError as error:
                if not error.is_temporary:
                    raise ClusterError(
                        f"{error}; {self.title} continues: {self._kubectl('get')}", error.status
                    ) from error
                self._note_outage(str(error))
                self._sleep(interval)
                continue
            self._note_outage("")
            if job is None:
                self._logs.finish(_LOGS_WAIT)
                raise NodesLostError(
                    f"{self.title} does not exist any more in namespace {self._cluster.namespace}: "
                    "another program, or another user, has deleted it"
                )
            self._update(pods)
            succeeded, why = end_of_job(job)
            if succeeded is not None:
                return self._conclude(succeeded, why)
            self._check_start(pods)
            if is_suspended(job):
                self._say_once("suspended", f"{self.title} is suspended, and waits for its queue")
            self._show_status(count_pods(pods, self._nodes))
            self._sleep(interval)

    def _note_outage(self, why: str) -> None:
        """Say that the cluster does not answer, once, and that it does again."""
        if why and not self._outage:
            self._say(f"{why}; {self.title} continues, and so does this command")
        elif self._outage and not why:
            self._say(f"{self._cluster.host} answers again")
        self._outage = why

    def _update(self, pods: Sequence[PodStatus]) -> None:
        for pod in pods:
            before = self._pods.get(pod.name)
            self._pods[pod.name] = pod
            if pod.is_started:
                self._bad_since.pop(pod.name, None)
                self._logs.follow(pod.name, pod.node)
            elif pod.problem:
                self._bad_since.setdefault(pod.name, self._clock())
                self._say_once(pod.problem, f"{pod.name} does not start: {pod.problem}")
            elif pod.unscheduled:
                self._say_once(
                    pod.unscheduled, f"{pod.name} waits for a machine: {pod.unscheduled}"
                )
            if pod.ends and not (before and before.ends and before.ends[0] == pod.ends[0]):
                if pod.ends[0].code:
                    self._say(pod.describe_end())
            elif pod.disruption and not (before and before.disruption):
                self._say(pod.describe_end())
            if pod.is_over:
                self._logs.end(pod.name)
        present = {pod.name for pod in pods}
        for name in self._pods.keys() - present:  # evicted, or replaced
            self._logs.end(name)
            self._bad_since.pop(name, None)
        if len(pods) < self._nodes:
            self._say_warnings()

    def _check_start(self, pods: Sequence[PodStatus]) -> None:
        """Raise an error if a container has not started for too long."""
        for pod in pods:
            since = self._bad_since.get(pod.name)
            if since is not None and self._clock() - since >= self._start_limit:
                raise StartError(
                    f"{pod.name} has not started within {self._start_limit:g} s (--start-limit): "
                    f"{pod.problem}; {self.title} is deleted; check the image and the template"
                )

    def _say_warnings(self) -> None:
        """Say why there are not enough pods, if the cluster has warned of something."""
        now = self._clock()
        if now - self._began < _NO_PODS or now < self._warnings_at:
            return
        self._warnings_at = now + _WARNINGS_INTERVAL
        try:
            warnings = self._cluster.warnings(self.name)
        except ClusterError:  # without the right to read events
            return
        if warnings:
            self._say_once(warnings[-1], f"{self.title}: {warnings[-1]}")

    def _conclude(self, succeeded: bool, why: str) -> int:
        try:
            has_all_lines = self._logs.finish(_LOGS_WAIT)
        except KeyboardInterrupt:  # the job is over, and keeps its result
            has_all_lines = False
        if not has_all_lines:
            self._say(f"some lines are missing; see kubectl logs -l {self._selector()}")
        if succeeded:
            return 0
        text = f"{self.title} has failed{why and ': '}{why}"
        code = choose_code(self._pods.values())
        if code is None:
            raise NodesLostError(
                f"{text}; no pod has an exit code; see {self._kubectl('describe')}"
            )
        self._say(text)
        return code

    # --- its end ----------------------------------------------------------------------------------

    def _end_at_signal(self) -> int | None:
        """Delete the job; if it was over before, leave it, and return its exit code."""
        if not self._may_exist:
            return None
        try:
            job = self._cluster.find(self.name)
        except KeyboardInterrupt:
            self._request_deletion()
            raise
        except ClusterError:
            job = None
        succeeded, why = (None, "") if job is None else end_of_job(job)
        if succeeded is not None:
            return self._conclude(succeeded, why)
        self._delete()
        return None

    def _delete(self) -> None:
        """Delete the job, and wait for its pods to end; their last lines are shown."""
        self._say(f"deleting {self.title}; the next stop signal ends this command at once")
        try:
            problem = self._wait_for_deletion()
        except KeyboardInterrupt:
            # Programs around this one may pass on a signal that it has got as well.
            if not self._is_deleted:
                self._request_deletion()
            raise
        if problem:
            self._say(f"{self.title} is not deleted yet: {problem}; see {self._kubectl('delete')}")

    def _wait_for_deletion(self) -> str:
        """Delete the job; return why it still exists, if it does."""
        seconds = grace(self._manifest) + _DELETE_WAIT
        until = self._clock() + seconds
        problem = ""
        while self._clock() < until:
            try:
                if not self._is_deleted:
                    self._cluster.delete(self.name)
                    self._is_deleted = True
                pods = [str(pod["metadata"]["name"]) for pod in self._cluster.pods(self.name)]
                if not pods and self._cluster.find(self.name) is None:
                    self._logs.finish(1.0)
                    return ""
                problem = f"after {seconds:g} s there are {', '.join(pods) or 'no pods'}"
                self._show_status(f"{len(pods)} pods left")
            except ClusterError as error:
                problem = str(error)
                if not error.is_temporary:
                    return problem
            self._sleep(_DELETE_INTERVAL)
        return problem

    def _request_deletion(self) -> None:
        """Request the deletion once, before this command ends."""
        try:
            self._cluster.delete(self.name)
        except ClusterError as error:
            self._say(f"{self.title} is not deleted: {error}; see {self._kubectl('delete')}")

    # --- messages ---------------------------------------------------------------------------------

    def _kubectl(self, verb: str) -> str:
        group = self._cluster.kind.api.partition("/")[0]
        name = f"{self._cluster.kind.plural}.{group} {self.name}"
        return f"kubectl {verb} {name} -n {self._cluster.namespace}"

    def _selector(self) -> str:
        selector = self._cluster.kind.selector.format(name=self.name)
        return f"{selector} -n {self._cluster.namespace}"

    def _show_status(self, text: str) -> None:
        if self._has_status:
            elapsed = format_elapsed(self._clock() - self._began)
            self._logs.show_status(f"{self.title}: {elapsed}, {text}")

    def _say_once(self, key: str, text: str) -> None:
        """Say something that is true of several pods, or for a while."""
        if key not in self._said:
            self._said.add(key)
            self._say(text)

    def _say(self, text: str) -> None:
        STDERR.say(text, "INFO")
