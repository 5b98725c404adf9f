"""Writing one bundle: its parts, its time limits, its path, and the report in it."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import secrets
import sys
import time
import zipfile
from dataclasses import replace
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, cast

from plaunch import __version__
from plaunch.errors import PlaunchError, ThreadStartError
from plaunch.plugin import one_line
from plaunch.process import ChildFailedError, ProcessFailure
from plaunch.threads import BoundedCall
from plaunch_events import Redaction

from plaunch_report.failure_bundle import commands, system
from plaunch_report.failure_bundle.gathering import File, MissingError, gather
from plaunch_report.failure_bundle.logs import AttemptFiles, find_folders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from plaunch.events import Event
    from plaunch.plugin import PluginContext
    from plaunch.process import LogsSpecs

    from plaunch_report.failure_bundle.gathering import Part
    from plaunch_report.failure_bundle.history import FailedAttempt

logger = logging.getLogger("plaunch")

MOST_NAMED = 4  # missing files in the message


class BundleTimes(NamedTuple):
    """When to give up, in seconds since the start of a bundle, for which the launcher waits.

    Args:
        commands: programs are killed.
        parts: unfinished parts are abandoned.
        files: no more files are added.
        bundle: the bundle is abandoned.
    """

    commands: float = 8.0
    parts: float = 8.5
    files: float = 9.2
    bundle: float = 9.7


def write_bundle(
    failed: FailedAttempt,
    context: PluginContext,
    folder: str,
    times: BundleTimes = BundleTimes(),  # noqa: B008 - immutable
    parts: Callable[..., dict[str, Part]] | None = None,
) -> None:
    """Write a bundle, and log in one line where it is or why there is none; raises nothing.

    Args:
        failed: the failed attempt.
        context: the launch.
        folder: where the bundle goes; empty for the folder of the run.
        times: when to give up.
        parts: creates the parts; None for `create_parts`.
    """
    create = parts or create_parts
    until = BundleTimes(*(time.monotonic() + seconds for seconds in times))
    try:
        call = BoundedCall("failure-bundle", lambda: _write(failed, context, folder, until, create))
    except (ThreadStartError, RuntimeError) as error:
        logger.warning("no failure bundle is written: %s", error)
        return
    if not call.wait(until.bundle - time.monotonic()):
        logger.warning(
            "no failure bundle: it was not written within %g s; the machine is busy, or a folder "
            "does not answer",
            times.bundle,
        )
    elif call.error is not None:
        logger.warning("no failure bundle is written: %s", _describe(call.error))
    elif call.result is None:
        logger.info(
            "no failure bundle: the run has no folder; give --log-dir or --failure-bundle=DIR"
        )
    else:
        written = cast("_Written", call.result)
        # A warning, so that it is shown with the report at any log level.
        logger.warning("failure bundle: %s (for plaunch-report)", written.path)
        if written.late:
            logger.warning(
                "the failure bundle is incomplete: within %g s there was no time for %s",
                times.files,
                name_some(written.late),
            )


class _Written(NamedTuple):
    """The path of a bundle, and the parts and files for which there was no time."""

    path: str
    late: list[str]


def name_some(names: Sequence[str]) -> str:
    """Name the first `MOST_NAMED` of these files, and say how many others there are."""
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _write(
    failed: FailedAttempt,
    context: PluginContext,
    folder: str,
    until: BundleTimes,
    create: Callable[..., dict[str, Part]],
) -> _Written | None:
    """Write the bundle; return None if there is no folder for it."""
    specs = cast("LogsSpecs | None", context.settings.get("logs_specs"))
    folders = find_folders(specs, context.run_id)
    target = folder or folders.kept
    if not target:
        return None
    words = commands.own_words()
    redact = Redaction.of_launch(os.environ, words or (), context.settings)
    repeat = failed.repeat if failed.is_restart else None
    attempt_files = AttemptFiles(folders.run, failed.attempt, failed.ranks, repeat)
    parts = create(failed, context, attempt_files, words, until.commands)
    files, missing, late = gather(parts, until.parts)
    title = (
        f"run {context.run_id!r}, attempt {failed.attempt}, on {context.host}: "
        f"{failed.name or 'the launch'} failed\n"
        f"by plaunch {__version__}, {time.strftime('%Y-%m-%d %H:%M:%S %z')}\n"
        f"Values with a name such as token, password, secret or key, and values that look like a "
        f"token, are written as <withheld>.\n"
    )
    os.makedirs(target, exist_ok=True)
    partial = os.path.join(target, f".failure-{failed.attempt}-{secrets.token_hex(8)}.partial")
    try:
        with (
            _open(partial) as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        ):
            contents, left_out = _add_all(archive, files, redact, until.files)
            contents += [f"{name}: {why}" for name, why in missing.items()]
            data = redact("\n".join((title, *contents, "")).encode(errors="replace"))
            _add(archive, "contents.txt", data)
        # After closing it, because some file systems report only then that they are full.
        path = _publish(partial, os.path.join(target, f"failure-{failed.attempt}"))
        return _Written(path, [*late, *left_out])
    except OSError as error:
        error.filename = target
        raise
    finally:
        with contextlib.suppress(OSError):
            os.unlink(partial)


def _open(path: str) -> BinaryIO:
    # Other users of the folder cannot guess the name, so they cannot place a link there.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return open(os.open(path, flags, 0o600), "wb")


def _describe(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error) if isinstance(error, PlaunchError) else one_line(error)


def create_parts(
    failed: FailedAttempt,
    context: PluginContext,
    attempt_files: AttemptFiles,
    words: Sequence[str] | None,
    until: float,
    *,
    run: Callable[[Sequence[str], float, str], bytes] = commands.run_plaunch,
    kernel_log: str = system.LOG,
) -> dict[str, Part]:
    """Return the functions that collect each part, the most important ones first.

    Args:
        failed: the failed attempt.
        context: the launch.
        attempt_files: the files of its workers.
        words: the words of the command line, if there is one.
        until: when programs are killed, on the monotonic clock.
        run: runs plaunch; see `run_plaunch`.
        kernel_log: the device of the kernel's log.
    """

    def run_for(argv: Sequence[str]) -> bytes:
        return run(argv, until, context.run_id)

    def failures() -> dict[int, ProcessFailure]:
        return find_failures(failed, attempt_files.of_worker)

    def find_report() -> Iterator[File]:
        yield File("report.txt", format_report(failed, failures()).encode(errors="replace"))

    parts: dict[str, Part] = {
        "report.txt": find_report,
        "error-files": lambda: attempt_files.error_files(failures()),
        "events.jsonl": lambda: _events(failed),
        "logs": lambda: attempt_files.logs(failures()),
        "stacks": attempt_files.stacks,
        "versions.txt": lambda: system.find_versions(sys.path),
        "plan.txt": lambda: commands.find_plan(words, context.settings, run_for),
        "doctor.txt": lambda: commands.find_doctor(words, run_for),
        "kernel.txt": lambda: system.find_kernel_lines(failed.pids, _began(failed), kernel_log),
    }
    if failed.is_restart and context.settings.get("start_method") == "fork":
        # This process forks the next workers soon, and must have no other threads then.
        for name in ("plan.txt", "doctor.txt", "kernel.txt"):
            parts[name] = _leave_out
    return parts


def _leave_out() -> list[File]:
    raise MissingError("not collected before workers are forked again (--start-method=fork)")


def _began(failed: FailedAttempt) -> float:
    """When the launch began, in seconds of the monotonic clock."""
    return failed.events[0].monotonic if failed.events else 0.0


def _events(failed: FailedAttempt) -> Iterator[File]:
    lines = "".join(f"{event.serialize()}\n" for event in failed.events)
    note = f"{failed.left_out} events in the middle are left out" if failed.left_out else ""
    yield File("events.jsonl", lines.encode(errors="replace"), note)


def _add_all(
    archive: zipfile.ZipFile, files: Sequence[File], redact: Redaction, until: float
) -> tuple[list[str], list[str]]:
    """Add files until the time is over; return a line about each, and the names of the others."""
    lines = []
    left_out = []
    for file in files:
        if time.monotonic() > until:
            lines.append(f"{file.name}: left out, as there was no time left")
            left_out.append(file.name)
            continue
        data = redact(file.data)
        _add(archive, file.name, data)
        lines.append(f"{file.name}: {len(data)} bytes{file.note and f' ({file.note})'}")
    return lines, left_out


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    date = time.localtime()[:6]
    info = zipfile.ZipInfo(name, date if date[0] >= 1980 else (1980, 1, 1, 0, 0, 0))
    info.compress_type = archive.compression
    info.external_attr = 0o600 << 16
    archive.writestr(info, data)


def _publish(partial: str, base: str) -> str:
    """Move a complete file to its final, unused name; several launchers may write to the folder."""
    for count in itertools.count():
        path = f"{base}.{count}.zip" if count else f"{base}.zip"
        try:
            os.link(partial, path)
        except FileExistsError:
            continue
        except OSError:
            # The file system has no links.
            if os.path.lexists(path):
                continue
            os.rename(partial, path)
        return path
    raise AssertionError  # the numbers do not end


def find_failures(
    failed: FailedAttempt, path_of: Callable[[int, str], str]
) -> dict[int, ProcessFailure]:
    """The workers that failed, by global rank, from the result or else from the events.

    Args:
        failed: the failed attempt.
        path_of: returns the path of a file of a worker of this node, by local rank and name; may be
            empty.
    """
    if failed.result is not None and failed.result.failures:
        return failed.result.failures
    local_ranks = {rank: local_rank for local_rank, rank in failed.ranks.items()}
    return {
        rank: _read(event, rank, local_ranks.get(rank, -1), path_of)
        for rank, event in failed.round.failures.items()
    }


def format_report(failed: FailedAttempt, failures: dict[int, ProcessFailure]) -> str:
    """The report on these failures; if no worker failed, why the launch ended."""
    if not failures:
        return f"{failed.name}: {failed.reason}\n"
    result = failed.result
    if result is None or not result.failures:
        error = ChildFailedError(
            failed.name, failures, stopped=failed.stopped, first=next(iter(failures))
        )
    else:
        error = replace(result, failures=failures).error(failed.name)
    return f"{error}\n"


def _read(
    event: Event, rank: int, local_rank: int, path_of: Callable[[int, str], str]
) -> ProcessFailure:
    """Restore a failure from its event and the worker's error file."""
    metadata = event.metadata
    path = path_of(local_rank, "error.json") if metadata["error_file"] and local_rank >= 0 else ""
    exitcode, pid = metadata["exit_code"], metadata["worker_pid"]
    return ProcessFailure(
        local_rank,
        pid if isinstance(pid, int) else -1,
        exitcode if isinstance(exitcode, int) else -1,
        path,
        message=str(metadata["message"] or ""),
        timestamp=event.timestamp,
        last_lines=str(metadata["last_lines"] or "").splitlines(),
        global_rank=rank,
        host=str(metadata["failed_host"]),
        log_files=_find_logs(local_rank, path_of),
        known_place=str(metadata.get("place") or ""),
    )


def _find_logs(local_rank: int, path_of: Callable[[int, str], str]) -> list[str]:
    if local_rank < 0:
        return []
    paths = (path_of(local_rank, name) for name in ("stdout.log", "stderr.log"))
    return [path for path in paths if os.path.isfile(path)]
