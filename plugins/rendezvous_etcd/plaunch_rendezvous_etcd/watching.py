"""Waits for keys: each wait is one stream of etcd's, which the waiting thread reads itself.

etcd3's own watcher spins while its server is away, and never resumes. Here an interrupted stream is
opened again after an increasing pause, possibly to another member, from the revision up to which
the key is known.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import TYPE_CHECKING, Any

from plaunch.errors import RendezvousConnectionError, RendezvousError

from plaunch_rendezvous_etcd.link import CallError, call_error

if TYPE_CHECKING:
    from plaunch_rendezvous_etcd.client import EtcdClient
    from plaunch_rendezvous_etcd.link import Link

_log = logging.getLogger("plaunch")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # seconds before a stream is opened again
_PUT = 0  # the kind of an event


class Watch:
    """One wait for a key to be written.

    Args:
        client: the client of etcd.
        key: what to watch.
        revision: the first revision of interest.
    """

    def __init__(self, client: EtcdClient, key: bytes, revision: int) -> None:
        self._client = client
        self._key = key
        self._revision = revision
        self._refusals = 0
        self._lock = threading.Lock()
        self._stream: Any = None
        self._is_over = threading.Event()

    def end(self) -> None:
        """End the wait. Thread-safe."""
        with self._lock:
            self._is_over.set()
            if self._stream is not None:
                self._stream.cancel()

    def wait(self, timeout: float) -> Any:
        """Return the written value as etcd's KeyValue.

        Returns None if the key must be read again: after `timeout` seconds, after `end`, or when
        etcd has compacted the revisions that would follow.

        Raises:
            RendezvousConnectionError: the client is closed, there has been no stream for
                `bounds.stream` seconds, or etcd rejects the watch.
        """
        deadline = time.monotonic() + timeout
        pause, worked_at = _FIRST_PAUSE, time.monotonic()
        while (left := deadline - time.monotonic()) > 0 and not self._is_over.is_set():
            try:
                return self._read(left)
            except _InterruptedError as raised:
                error = raised
            if error.has_worked:
                pause, worked_at = _FIRST_PAUSE, time.monotonic()
            is_lost = time.monotonic() - worked_at > self._client.bounds.stream
            if is_lost or self._client.is_closed:
                raise RendezvousConnectionError(f"a watch was interrupted: {error}")
            _log.debug("a watch is interrupted: %s", error)
            self._is_over.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311
            pause = min(2 * pause, _LONGEST_PAUSE)
        return None

    def _read(self, timeout: float) -> Any:
        """Open a stream, and read it until there is a result; as `wait`.

        Raises:
            _InterruptedError: there is no link, or the stream has failed.
            RendezvousConnectionError: etcd rejects the watch.
        """
        try:
            link = self._client.link()
            stream = link.stream("Watch", "Watch", self._request(), timeout)
        except (CallError, RendezvousError) as error:
            raise _InterruptedError(str(error), has_worked=False) from error
        with self._lock:
            self._stream = stream
        has_worked = False
        try:
            if self._is_over.is_set():
                return None  # `end` was called before it could cancel the stream
            for response in stream:
                has_worked = True
                if response.compact_revision:
                    return None
                if response.canceled:
                    self._check_refusal(link, response.cancel_reason)
                for event in response.events:
                    if event.type == _PUT and event.kv.mod_revision >= self._revision:
                        return event.kv
        except self._client.protocol.grpc.RpcError as raised:
            failure = call_error(raised)
            if self._is_over.is_set() or failure.code == "DEADLINE_EXCEEDED":
                return None
            if failure.is_of_link and failure.code != "CANCELLED":
                self._client.give_up(link)
            raise _InterruptedError(str(failure), has_worked) from None
        finally:
            with self._lock:
                self._stream = None
            self._client.protocol.end_stream(stream)
        raise _InterruptedError("etcd has ended the stream", has_worked)

    def _check_refusal(self, link: Link, reason: str) -> None:
        """Process the end of the watch by etcd.

        Raises:
            _InterruptedError: a new stream may help.
            RendezvousConnectionError: it cannot.
        """
        self._refusals += 1
        text = f"etcd at {link.endpoint} has ended a watch: {reason or 'unknown'}"
        if self._refusals == 1 and link.is_logged_in:
            # etcd reports an expired login as a lack of permission. The login is the stream's, so a
            # new one needs a new stream.
            link.forget_login()
            raise _InterruptedError(text, has_worked=True)
        raise RendezvousConnectionError(text)

    def _request(self) -> Any:
        message = self._client.protocol.message
        create = message("WatchCreateRequest")(
            key=self._key,
            start_revision=self._revision,
            filters=[message("WatchCreateRequest").NODELETE],
        )
        return message("WatchRequest")(create_request=create)


class _InterruptedError(Exception):
    """A stream has failed.

    Args:
        text: the reason.
        has_worked: whether etcd has answered on it before.
    """

    def __init__(self, text: str, has_worked: bool) -> None:
        super().__init__(text)
        self.has_worked = has_worked
