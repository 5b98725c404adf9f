"""The API of Kubernetes, through its official client."""

from __future__ import annotations

import http.client
import json
import os
from typing import TYPE_CHECKING, Any

from plaunch.errors import PlaunchError, UsageError

if TYPE_CHECKING:
    from types import TracebackType

    from plaunch_engines.kubernetes_manifests import JobKind, Manifest

_TIMEOUT = (5.0, 30.0)  # seconds to connect, and for a reply
_LOG_TIMEOUT = (5.0, 300.0)  # seconds without a line, after which a log is requested again
_CONNECTIONS = 64  # to keep open; more are opened as needed
_NAMESPACE_FILE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"


class ClusterError(PlaunchError):
    """The API server has refused a request, or cannot be reached.

    Args:
        text: the message.
        status: the HTTP status of the reply; 0 if there was none.
    """

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status

    @property
    def is_temporary(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in (0, 408, 429) or self.status >= 500


class Cluster:
    """The API server of the current context, and one namespace.

    Args:
        kind: the kind of the job.
        namespace: empty for that of the context.

    Attributes:
        unreachable: what the client raises if a connection fails.

    Raises:
        UsageError: the client is not installed, or has no configuration.
    """

    def __init__(self, kind: JobKind, namespace: str = "") -> None:
        try:
            from kubernetes import client, config
            from kubernetes.client.exceptions import ApiException
            from urllib3.exceptions import HTTPError
        except ImportError as error:
            raise UsageError(
                f"--on=kubernetes needs the client of Kubernetes ({error}); pip install "
                "'plaunch[kubernetes]', or write the manifests with --on=kubernetes:print"
            ) from error
        self._refused = ApiException
        self.unreachable: tuple[type[Exception], ...] = (
            HTTPError,
            OSError,
            http.client.HTTPException,
        )
        settings = client.Configuration()
        own = _load_configuration(config, settings)
        settings.connection_pool_maxsize = _CONNECTIONS
        settings.retries = False
        self.host = settings.host
        self.kind = kind
        self.namespace = namespace or own or "default"
        self._client = client.ApiClient(settings)
        self._core = client.CoreV1Api(self._client)
        self._objects = client.CustomObjectsApi(self._client)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._client.close()

    def create(self, manifest: Manifest, *, is_trial: bool = False) -> Manifest:
        """Create an object, and return it; unknown fields are errors.

        Args:
            manifest: of the job, a Secret or a Service.
            is_trial: whether the server checks it only.
        """
        options: dict[str, Any] = {"field_validation": "Strict"}
        if is_trial:
            options["dry_run"] = "All"
        what = f"create {manifest['kind']} {manifest['metadata']['name']}"
        if manifest["kind"] == "Secret":
            method = self._core.create_namespaced_secret
        elif manifest["kind"] == "Service":
            method = self._core.create_namespaced_service
        else:
            return self._call(
                what, self._objects.create_namespaced_custom_object, *self._path(), manifest,
                **options,
            )  # fmt: skip
        return self._call(what, method, self.namespace, manifest, **options)

    def delete(self, name: str) -> None:
        """Delete the job and its pods; a no-op if it does not exist."""
        try:
            self._call(
                f"delete {self.kind.kind} {name}",
                self._objects.delete_namespaced_custom_object,
                *self._path(),
                name,
                propagation_policy="Foreground",
            )
        except ClusterError as error:
            if error.status != http.client.NOT_FOUND:
                raise

    def find(self, name: str) -> Manifest | None:
        """Return the job, or None if it does not exist."""
        try:
            return self._call(
                f"read {self.kind.kind} {name}",
                self._objects.get_namespaced_custom_object,
                *self._path(),
                name,
            )
        except ClusterError as error:
            if error.status != http.client.NOT_FOUND:
                raise
            return None

    def pods(self, name: str) -> list[Manifest]:
        """Return the pods of the job that run agents."""
        selector = self.kind.selector.format(name=name)
        method = self._core.list_namespaced_pod
        found = self._call("list pods", method, self.namespace, label_selector=selector)
        return list(found["items"])

    def warnings(self, name: str) -> list[str]:
        """Return the warnings about the job, the newest one last."""
        found = self._call(
            "list events",
            self._core.list_namespaced_event,
            self.namespace,
            field_selector=f"involvedObject.name={name},type=Warning",
        )
        events = sorted(found["items"], key=lambda event: str(event.get("lastTimestamp") or ""))
        return [f"{event.get('reason')}: {event.get('message')}" for event in events]

    def open_log(self, pod: str, container: str, since: int | None) -> Any:
        """Return the response that has the lines of a container, each after a time stamp.

        Args:
            pod: the name of the pod.
            container: the name of the container.
            since: seconds before now from which lines are wanted; None for all.
        """
        options = {} if since is None else {"since_seconds": since}
        return self._request(
            f"read the log of {pod}",
            self._core.read_namespaced_pod_log,
            pod,
            self.namespace,
            container=container,
            follow=True,
            timestamps=True,
            _request_timeout=_LOG_TIMEOUT,
            **options,
        )

    def _path(self) -> tuple[str, str, str, str]:
        group, _, version = self.kind.api.partition("/")
        return group, version, self.namespace, self.kind.plural

    def _call(self, what: str, method: Any, *args: object, **options: object) -> Manifest:
        response = self._request(what, method, *args, _request_timeout=_TIMEOUT, **options)
        try:
            result: Manifest = json.loads(response.data)
        except self.unreachable as error:
            raise ClusterError(f"cannot {what}: the reply of {self.host} ended early") from error
        except ValueError as error:
            raise ClusterError(f"cannot {what}: {self.host} sent no JSON ({error})", -1) from error
        return result

    def _request(self, what: str, method: Any, *args: object, **options: object) -> Any:
        try:
            response = method(*args, _preload_content=False, **options)
            status, body = response.status, None
            if status >= http.client.BAD_REQUEST:
                body = response.data
        except self._refused as error:
            status, body = error.status or 0, error.body or error.reason
        except self.unreachable as error:
            reason = getattr(error, "reason", None) or error
            raise ClusterError(f"cannot {what}: {self.host} cannot be reached: {reason}") from error
        if status < http.client.BAD_REQUEST and body is None:
            return response
        raise ClusterError(f"cannot {what}: {self._explain(status, body)}", status)

    def _explain(self, status: int, body: Any) -> str:
        """Return the server's message in one line, and what to do."""
        text = body.decode(errors="replace") if isinstance(body, bytes) else str(body)
        try:
            text = json.loads(text)["message"]
        except (ValueError, KeyError, TypeError):
            if status == http.client.NOT_FOUND and self.kind.product:
                return (
                    f"the cluster has no {self.kind.plural}.{self.kind.api.partition('/')[0]}; "
                    f"install {self.kind.product}, or choose another --kubernetes-kind"
                )
        text = " ".join(text.split())
        if status == http.client.UNAUTHORIZED:
            return f"{self.host} does not accept the credentials of the current context ({text})"
        if status == http.client.NOT_FOUND and text.startswith("namespaces "):
            return f"{text}; name another one with --kubernetes-namespace"
        return f"{text} ({status})"


def _load_configuration(config: Any, settings: Any) -> str:
    """Fill in the settings of the current context, or of the pod; return its namespace.

    Raises:
        UsageError: there is neither.
    """
    try:
        config.load_kube_config(client_configuration=settings)
        _, context = config.list_kube_config_contexts()
        return str(context["context"].get("namespace") or "")
    except config.ConfigException as error:
        reason = " ".join(str(error).split())
    except Exception as error:  # noqa: BLE001 - a file of any content, and a program it may name
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        try:
            config.load_incluster_config(client_configuration=settings)
            with open(_NAMESPACE_FILE, encoding="utf-8") as file:
                return file.read().strip()
        except (config.ConfigException, OSError) as error:
            reason = " ".join(str(error).split())
    raise UsageError(
        f"--on=kubernetes: no cluster is configured ({reason}); set KUBECONFIG, or write the "
        "manifests with --on=kubernetes:print"
    )
