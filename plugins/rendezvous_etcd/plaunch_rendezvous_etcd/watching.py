"""Waits for keys: one stream of watches per agent, which is reopened after an outage.

etcd3's own watcher spins while its server is away, and never resumes. Here the stream is reopened
after an increasing pause, possibly to another member. Every watch continues from the revision up to
which its key is known. If those revisions have been compacted, the watch reports it.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import random
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from plaunch.errors import RendezvousConnectionError, RendezvousError

from plaunch_rendezvous_etcd.link import CallError, call_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plaunch_rendezvous_etcd.client import EtcdClient
    from plaunch_rendezvous_etcd.link import Link

_log = logging.getLogger("plaunch")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # seconds before the stream is reopened
_PUT = 0  # the kind of an event


class Watch:
    """One wait for a key to be written.

    Args:
        key: what to watch.
        revision: the first revision of interest.
    """

    def __init__(self, key: bytes, revision: int) -> None:
        self.key = key
        self.revision = revision
        self.found: Any = None  # the written value, as etcd's KeyValue
        self.error: RendezvousConnectionError | None = None
        self.number: int | None = None  # its id on the current stream, once etcd has assigned one
        self.refusals = 0
        self._ended = threading.Event()

    @property
    def is_over(self) -> bool:
        """Whether the wait has ended."""
        return self._ended.is_set()

    def end(self, error: RendezvousConnectionError | None = None) -> None:
        """End the wait."""
        if not self._ended.is_set():
            self.error = error
            self._ended.set()

    def wait(self, timeout: float) -> None:
        """Return after `end`, or after `timeout` seconds.

        Raises:
            RendezvousConnectionError: it was ended by an error.
        """
        self._ended.wait(timeout)
        if self.error is not None:
            raise self.error


class WatchStream:
    """All watches of an agent. The stream is opened by its own thread, with the first watch."""

    def __init__(self, client: EtcdClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._has_work = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._requests: queue.SimpleQueue[Any] | None = None  # of the current stream
        self._call: Any = None
        self._pending: deque[Watch] = deque()  # requested on the current stream, in this order
        self._active: dict[int, Watch] = {}  # by id on the current stream
        self._waiting: list[Watch] = []  # all watches with a waiter

    def add(self, key: bytes, revision: int) -> Watch:
        """Start to watch `key`; `remove` ends the watch.

        Raises:
            RendezvousConnectionError: the client is closed.
        """
        watch = Watch(key, revision)
        with self._lock:
            if self._is_closed:
                raise RendezvousConnectionError("the connection to etcd is closed")
            self._waiting.append(watch)
            if self._requests is not None:
                self._request_watch(watch)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="plaunch-etcd-watches", daemon=True
                )
                self._thread.start()
            self._has_work.notify_all()
        return watch

    def remove(self, watch: Watch) -> None:
        """End a watch, whatever its state."""
        watch.end()
        with self._lock:
            with contextlib.suppress(ValueError):
                self._waiting.remove(watch)
            if watch.number is not None and self._active.pop(watch.number, None) is not None:
                self._cancel(watch.number)

    def close(self) -> None:
        """End all watches, and the stream."""
        with self._lock:
            self._is_closed = True
            waiting, self._waiting = self._waiting, []
            self._break_stream()
            self._has_work.notify_all()
        for watch in waiting:
            watch.end(RendezvousConnectionError("the connection to etcd is closed"))

    # --- on the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        pause, broken_at = _FIRST_PAUSE, time.monotonic()
        while True:
            with self._lock:
                while not self._waiting and not self._is_closed:
                    self._has_work.wait()
                    broken_at = time.monotonic()
                if self._is_closed:
                    return
            try:
                has_worked = self._read()
                error: RendezvousError = RendezvousConnectionError("etcd has ended the watches")
            except (CallError, RendezvousError) as raised:
                has_worked = isinstance(raised, _StreamEndedError) and raised.has_worked
                error = (
                    raised
                    if isinstance(raised, RendezvousError)
                    else _StreamEndedError(raised, False)
                )
            if has_worked:
                pause, broken_at = _FIRST_PAUSE, time.monotonic()
            _log.debug("the watches are interrupted: %s", error)
            if time.monotonic() - broken_at > self._client.bounds.stream:
                self._fail_all(error)
            self._pause(pause * random.uniform(0.5, 1.0))  # noqa: S311
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _read(self) -> bool:
        """Open a stream, and read it to its end; returns whether anything was read.

        Raises:
            RendezvousError, CallError: there is no link, or the stream has failed.
        """
        link = self._client.link()
        requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        timeout = self._client.answer_timeout
        call = link.stream("Watch", "Watch", _until_none(requests), timeout)
        with self._lock:
            if self._is_closed:
                call.cancel()
                return False
            self._requests, self._call = requests, call
            self._pending.clear()
            self._active.clear()
            for watch in self._waiting:
                watch.number = None
                self._request_watch(watch)
        has_worked = False
        try:
            for response in call:
                has_worked = True
                if not self._handle(response, link):
                    break
        except self._client.protocol.grpc.RpcError as raised:
            error = call_error(raised)
            if error.is_of_link and error.code != "CANCELLED":
                self._client.give_up(link)
            raise _StreamEndedError(error, has_worked) from None
        finally:
            with self._lock:
                self._break_stream()
        return has_worked

    def _handle(self, response: Any, link: Link) -> bool:
        """Process a response; False if the stream must be reopened."""
        with self._lock:
            if response.created and self._pending:
                created = self._pending.popleft()
                created.number = response.watch_id
                if not response.canceled:
                    if created.is_over:
                        self._cancel(response.watch_id)
                        return True
                    self._active[response.watch_id] = created
                watch: Watch | None = created
            else:
                watch = self._active.get(response.watch_id)
            if watch is None:
                return True
            if response.canceled:
                self._active.pop(response.watch_id, None)
                return self._handle_end(watch, response, link)
            for event in response.events:
                if event.type == _PUT and event.kv.mod_revision >= watch.revision:
                    watch.found = event.kv
                    watch.end()
                    break
        return True

    def _handle_end(self, watch: Watch, response: Any, link: Link) -> bool:
        """Process the end of a watch; the lock is held."""
        if response.compact_revision:
            watch.end()  # the reader finds no value, and reads the key again
            return True
        watch.refusals += 1
        if watch.refusals == 1 and link.is_logged_in:
            # etcd reports an expired login as a lack of permission. The login is the stream's, so a
            # new one needs a new stream.
            link.forget_login()
            return False
        watch.end(
            RendezvousConnectionError(
                f"etcd at {link.endpoint} has ended a watch: {response.cancel_reason or 'unknown'}"
            )
        )
        return True

    def _request_watch(self, watch: Watch) -> None:
        if self._requests is None:
            return
        message = self._client.protocol.message
        create = message("WatchCreateRequest")(
            key=watch.key,
            start_revision=watch.revision,
            filters=[message("WatchCreateRequest").NODELETE],
        )
        self._pending.append(watch)
        self._requests.put(message("WatchRequest")(create_request=create))

    def _cancel(self, number: int) -> None:
        if self._requests is not None:
            message = self._client.protocol.message
            cancel = message("WatchCancelRequest")(watch_id=number)
            self._requests.put(message("WatchRequest")(cancel_request=cancel))

    def _break_stream(self) -> None:
        """End the current stream; the lock is held."""
        if self._requests is not None:
            self._requests.put(None)
        if self._call is not None:
            self._call.cancel()
        self._requests = self._call = None
        self._pending.clear()
        self._active.clear()

    def _fail_all(self, error: RendezvousError) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for watch in waiting:
            watch.end(RendezvousConnectionError(f"a watch was interrupted: {error}"))

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        with self._lock:
            while not self._is_closed and (left := deadline - time.monotonic()) > 0:
                self._has_work.wait(left)


class _StreamEndedError(RendezvousConnectionError):
    """The stream has ended."""

    def __init__(self, error: CallError, has_worked: bool) -> None:
        super().__init__(str(error))
        self.has_worked = has_worked


def _until_none(requests: queue.SimpleQueue[Any]) -> Iterator[Any]:
    while (request := requests.get()) is not None:
        yield request
