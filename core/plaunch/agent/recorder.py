"""torchrun's events, made from the moments of an agent."""

from __future__ import annotations

import logging
import socket
import time
from typing import TYPE_CHECKING

from plaunch.agent import moments
from plaunch.events import Event, EventHandler, EventSource

if TYPE_CHECKING:
    from plaunch.agent.worker import GroupInfo, RunResult, WorkerInfo
    from plaunch.events import EventMetadataValue

logger = logging.getLogger("plaunch")


class EventRecorder:
    """Turns moments into events and hands them to an event handler.

    The order is torchrun's: RENDEZVOUS, START of each worker, SUCCEEDED, FAILED or TERMINATED of
    each worker, then SUCCEEDED or FAILED of the agent. TERMINATED is a worker that the agent ended;
    its event comes when it ends, not at the end of the run. A handler that raises is reported once
    and not called again; the job goes on.
    """

    def __init__(self, handler: EventHandler, rdzv_backend: str, entry_point: str) -> None:
        self._handler: EventHandler | None = handler
        self._rdzv_backend = rdzv_backend
        self._entry_point = entry_point
        self._host = socket.gethostname()
        self._began = time.monotonic()

    def __call__(self, moment: moments.Moment) -> None:
        """Record what `moment` amounts to; the last moment closes the handler."""
        if isinstance(moment, moments.AfterRendezvous):
            self._record("RENDEZVOUS", moment.group, duration_ms=moment.duration * 1000)
        elif isinstance(moment, moments.WorkersStarted):
            for worker in moment.group.workers:
                self._record("START", moment.group, worker)
        elif isinstance(moment, moments.WorkerExited):
            self._record_exit(moment)
        elif isinstance(moment, moments.AgentFinished):
            self._record_end(moment.group, moment.result)

    def _record_exit(self, moment: moments.WorkerExited) -> None:
        exited = moment.exit
        if exited.stopped:
            state = "TERMINATED"
        else:
            state = "SUCCEEDED" if exited.exitcode == 0 else "FAILED"
        raw_error = None if exited.failure is None else str(exited.failure.message)
        self._record(
            state, moment.group, exited.worker, raw_error=raw_error, exit_code=exited.exitcode
        )

    def _record_end(self, group: GroupInfo, result: RunResult | None) -> None:
        # torchrun's "agent succeeded" means that it came to a result, whatever the workers did.
        self._record("FAILED" if result is None else "SUCCEEDED", group)
        handler, self._handler = self._handler, None
        if handler is None:
            return
        try:
            handler.close()
        except Exception as error:  # noqa: BLE001 - an event handler must not harm the job
            logger.warning("the event handler failed to close: %r", error)

    def _record(
        self,
        state: str,
        group: GroupInfo,
        worker: WorkerInfo | None = None,
        *,
        raw_error: str | None = None,
        duration_ms: float | None = None,
        exit_code: int | None = None,
    ) -> None:
        if self._handler is None:
            return
        metadata: dict[str, EventMetadataValue] = {
            "run_id": group.run_id,
            "global_rank": None if worker is None else worker.global_rank,
            "group_rank": group.group_rank,
            "worker_id": None if worker is None or worker.pid is None else str(worker.pid),
            "role": group.role,
            "hostname": self._host,
            "state": state,
            "total_run_time": time.monotonic() - self._began,
            "rdzv_backend": self._rdzv_backend,
            "raw_error": raw_error,
            "agent_restarts": group.attempt,
            "duration_ms": duration_ms,
            # torchrun packs what follows into a JSON string under the key `metadata`.
            "round": group.round,
            "group_world_size": group.group_world_size,
            "entry_point": self._entry_point,
        }
        if worker is not None:
            metadata.update(
                local_rank=worker.local_rank,
                role_rank=worker.role_rank,
                role_world_size=worker.role_world_size,
                exit_code=exit_code,
                worker_pid=worker.pid,
            )
        event = Event(
            name=f"torchelastic.worker.status.{state}",
            source=EventSource.AGENT if worker is None else EventSource.WORKER,
            metadata=metadata,
        )
        try:
            self._handler.handle(event)
        except Exception as error:  # noqa: BLE001 - an event handler must not harm the job
            logger.warning("the event handler failed and is switched off: %r", error)
            self._handler = None
