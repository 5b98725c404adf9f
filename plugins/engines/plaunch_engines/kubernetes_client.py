"""The API of Kubernetes, through its official client."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import re
from typing import TYPE_CHECKING, Any

from plaunch.errors import PlaunchError, UsageError
from plaunch.texts import printable

from plaunch_engines.kubernetes_manifests import CONTAINER

if TYPE_CHECKING:
    from types import TracebackType

    from plaunch_engines.kubernetes_manifests import JobKind, Manifest

_TIMEOUT = (5.0, 30.0)  # seconds to connect, and for a reply
_LOG_TIMEOUT = (5.0, 300.0)  # seconds without a line, after which a log is requested again
_CONNECTIONS = 4096  # that may be kept open; with more, the client warns of each
_NAMESPACE_FILE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
_MAX_TEXT = 1000  # characters of a reply in a message
_CONNECTION = re.compile(r"(HTTPS?Connection(Pool)?\(.*?\)|<urllib3[^>]*>): ")  # no news
_NO_RESOURCE = "the server could not find the requested resource"  # the version does not exist


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


class ObjectNotFoundError(ClusterError):
    """The object does not exist, or its kind or namespace does not."""


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

    def check_rights(self, name: str) -> None:
        """Try the requests that follow a job, before it exists.

        Raises:
            ClusterError: one of them is refused.
        """
        self.find(name)
        self.pods(name)
        self.delete(name)
        with contextlib.suppress(ObjectNotFoundError):
            self.open_log(f"{name}-0", None)

    def delete(self, name: str) -> None:
        """Delete the job and its pods; a no-op if it does not exist."""
        with contextlib.suppress(ObjectNotFoundError):
            self._call(
                f"delete {self.kind.kind} {name}",
                self._objects.delete_namespaced_custom_object,
                *self._path(),
                name,
                propagation_policy="Foreground",
            )

    def find(self, name: str) -> Manifest | None:
        """Return the job, or None if it does not exist."""
        try:
            return self._call(
                f"read {self.kind.kind} {name}",
                self._objects.get_namespaced_custom_object,
                *self._path(),
                name,
            )
        except ObjectNotFoundError:
            return None

    def pods(self, name: str) -> list[Manifest]:
        """Return the pods of the job that run agents."""
        selector = self.kind.selector.format(name=name)
        method = self._core.list_namespaced_pod
        found = self._call("list pods", method, self.namespace, label_selector=selector)
        return list(found.get("items") or [])

    def warnings(self, name: str) -> list[str]:
        """Return the warnings about the job and its Job, the newest one last."""
        events: list[Manifest] = []
        for each in dict.fromkeys((name, self.kind.job.format(name=name))):
            found = self._call(
                "list events",
                self._core.list_namespaced_event,
                self.namespace,
                field_selector=f"involvedObject.name={each},type=Warning",
            )
            events += found.get("items") or []
        events.sort(key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime")))
        return [f"{event.get('reason')}: {event.get('message')}" for event in events]

    def open_log(self, pod: str, since: int | None) -> Any:
        """Return the response that has the lines of a pod's agent, each after a time stamp.

        Args:
            pod: the name of the pod.
            since: seconds before now from which lines are wanted; None for all.
        """
        options = {} if since is None else {"since_seconds": since}
        return self._request(
            f"read the log of {pod}",
            self._core.read_namespaced_pod_log,
            pod,
            self.namespace,
            container=CONTAINER,
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
        except (ValueError, RecursionError) as error:
            raise ClusterError(f"cannot {what}: {self.host} sent no JSON ({error})", -1) from error
        return result

    def _request(self, what: str, method: Any, *args: object, **options: object) -> Any:
        cause: Exception | None = None
        try:
            response = method(*args, _preload_content=False, **options)
            status, body = response.status, None
            if status < http.client.BAD_REQUEST:
                return response
            body = response.data
        except self._refused as error:
            status, body, cause = error.status or 0, error.body or error.reason, error
        except self.unreachable as error:
            status, body, cause = 0, getattr(error, "reason", None) or error, error
        kind = ObjectNotFoundError if status == http.client.NOT_FOUND else ClusterError
        raise kind(f"cannot {what}: {self._explain(status, body)}", status) from cause

    def _explain(self, status: int, body: Any) -> str:
        """Return the server's message in one line, and what to do."""
        text = body.decode(errors="replace") if isinstance(body, bytes) else str(body)
        is_of_kubernetes = False
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            text, is_of_kubernetes = str(json.loads(text)["message"]), True
        text = printable(" ".join(text.split()), _MAX_TEXT)
        if not status:
            return (
                f"{self.host} cannot be reached: {_CONNECTION.sub('', text)}; this must work: "
                "kubectl get --raw /readyz"
            )
        if status == http.client.UNAUTHORIZED:
            return (
                f"{self.host} does not accept the credentials of the current context ({text}); log "
                "in again"
            )
        hint = ""
        if status == http.client.NOT_FOUND and (not is_of_kubernetes or text == _NO_RESOURCE):
            group, _, version = self.kind.api.partition("/")
            hint = (
                f"; the cluster has no {self.kind.plural}.{group} in version {version}: install "
                f"{self.kind.product}, or choose another --kubernetes-kind"
            )
        elif status == http.client.NOT_FOUND and text.startswith("namespaces "):
            hint = "; name another one with --kubernetes-namespace"
        elif status == http.client.FORBIDDEN and " cannot " in text:
            hint = "; get this right, or name another namespace with --kubernetes-namespace"
        return f"{text} ({status} from {self.host}){hint}"


class _ErrorLog(logging.Handler):
    """Keeps what the client logs, such as the failure of a program that has the credentials."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = " ".join(record.getMessage().split())

    def __enter__(self) -> _ErrorLog:
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        logging.getLogger().removeHandler(self)


def _load_configuration(config: Any, settings: Any) -> str:
    """Fill in the settings of the current context, or of the pod; return its namespace.

    Raises:
        UsageError: there is neither, or the credentials cannot be read.
    """
    log = _ErrorLog()
    try:
        with log:
            config.load_kube_config(client_configuration=settings)
            _, context = config.list_kube_config_contexts()
    except config.ConfigException as error:
        reason = " ".join(str(error).split())
    except Exception as error:  # noqa: BLE001 - a file of any content, and a program it may name
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
    else:
        if log.text:
            raise UsageError(
                f"--on=kubernetes: context {context['name']!r} gives no credentials for "
                f"{settings.host} ({log.text}); log in, or use another context"
            )
        return str(context["context"].get("namespace") or "")
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
