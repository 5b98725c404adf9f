"""Text from outside, through each boundary at which plaunch reads it, up to the terminal.

A module that decodes bytes of others belongs to one of the lists: its text is made safe where it is
read, and a function here shows that, or it never reaches a message.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import socket
import threading
from types import SimpleNamespace

import pytest
from plaunch.cli.console import Stderr
from plaunch.errors import PlaunchError, UsageError, one_line
from plaunch.process import ChildFailedError, ProcessFailure, read_name
from plaunch_job_store import frames
from plaunch_job_store.authentication import Authenticator
from plaunch_job_store.client import StoreClient
from plaunch_job_store.frames import MessageKind
from plaunch_job_store.reports import ServerReport, describe_report

from helpers.hostile import FORGED, HOSTILE, assert_harmless
from helpers.sources import parse_all

BOUNDARIES = {}


def boundary(*modules):
    """Register a function that sends a text through a boundary, and returns the message."""

    def register(function):
        BOUNDARIES[function.__name__] = function, modules
        return function

    return register


# --- sockets --------------------------------------------------------------------------------------


def answered(*answers):
    """Connect a client of a store to a server that answers so; return its error."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            with contextlib.suppress(OSError):
                for answer in answers:
                    sock, _ = listener.accept()
                    with sock:
                        sock.recv(4096)
                        sock.sendall(answer)
                        sock.shutdown(socket.SHUT_WR)
                        while sock.recv(4096):
                            pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        address = listener.getsockname()
        try:
            StoreClient(
                lambda timeout: socket.create_connection(address, timeout),
                Authenticator(None, "job"),
                "here:1",
                5.0,
            )
        except PlaunchError as error:
            return str(error)
        finally:
            listener.close()
    raise AssertionError


def long_text(text):
    encoded = text.encode(errors="replace")[: (1 << 16) - 1]
    return frames.u16(len(encoded)) + encoded


@boundary("plaunch_job_store.frames")
def refusal_of_a_store(text):
    return answered(frames.frame(MessageKind.REFUSED, long_text(text)))


@boundary()
def server_that_has_proved_nothing(text):
    return answered(text.encode(errors="replace")[:100_000], b"")


@boundary("plaunch_job_store.frames")
def failed_operation_of_a_store(text):
    data = frames.u16(1) + frames.u8(3) + long_text(text)
    (result,) = frames.decode_results(frames.Fields(data))
    return result.reason


@boundary("plaunch_job_store.reports")
def peer_of_a_store(text):
    return describe_report(ServerReport(text, text), lambda address: address)


@boundary("plaunch_rendezvous_c10d.hosting")
def name_of_another_store(text):
    from plaunch_rendezvous_c10d.hosting import check_sole_host

    found = SimpleNamespace(multi_get=lambda keys: [text.encode(errors="replace")], close=str)
    connector = SimpleNamespace(connect=lambda: found, endpoint=SimpleNamespace(name="here:1"))
    with pytest.raises(PlaunchError) as caught:
        check_sole_host(SimpleNamespace(identity="me", port=1), connector)
    return str(caught.value)


@boundary()
def error_of_torchs_store(text):
    pytest.importorskip("torch.distributed")
    from plaunch_rendezvous_c10d.torch_stores import first_line

    return first_line(RuntimeError(text))


@boundary("plaunch_rendezvous_etcd.diagnosis")
def version_of_etcd(text):
    from plaunch_network import resolve_host
    from plaunch_rendezvous_etcd.diagnosis import diagnose

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            sock, _ = listener.accept()
            with sock, contextlib.suppress(OSError):
                sock.recv(4096)
                body = json.dumps({"etcdserver": text[:50_000]}).encode()
                sock.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + body)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        (address, *_) = resolve_host(*listener.getsockname())
        found = diagnose("here:1", address, SimpleNamespace(is_on=False), 5.0)
        thread.join(5)
    return found.text


@boundary()
def answer_of_node_0(text):
    from plaunch_rendezvous_static.messages import read_answer

    with pytest.raises(PlaunchError) as caught:
        read_answer(json.dumps({"refused": text}).encode())
    return str(caught.value)


@boundary()
def introduction_of_a_node(text):
    from plaunch_rendezvous_static.messages import read_introduction, to_line

    fields = {"run_id": "job", "role": "", "nodes": 2, "rank": 1, "local_world_size": 1}
    node = read_introduction(to_line({**fields, "host": text}))
    with pytest.raises(ValueError, match="not an introduction") as caught:
        read_introduction(to_line({**fields, "host": "h", "nodes": text}))
    return f"{node.host} {caught.value}"


# --- records of other nodes -----------------------------------------------------------------------


@boundary()
def record_of_a_node(text):
    from plaunch_membership.records import RecordCodec, StoreRecord

    record = StoreRecord("key", {"text": text})
    with contextlib.suppress(PlaunchError):
        return record.text("text", max_len=400)
    with pytest.raises(PlaunchError) as caught:
        RecordCodec("job").decode("key", text.encode(errors="replace")[:10_000])
    return f"{record.text('text')} {caught.value}"


@boundary("plaunch_membership.process_failures")
def failure_of_another_node(text):
    from plaunch_membership.failures import JobFailure
    from plaunch_membership.process_failures import from_job_failures

    detail = {
        **dict.fromkeys(("host", "message", "traceback", "reason", "place"), text),
        "has_reply": True,
        "last_lines": [text],
        "log_files": [text],
    }
    failure = JobFailure(rank=0, began=1.0, summary=text, detail=detail)
    failures, _ = from_job_failures([failure], {})
    return report_of(failures[0])


@boundary()
def stack_of_another_node(text):
    from plaunch_hang.stacks import StackGroup, dump_groups, format_groups, load_groups

    groups = load_groups(dump_groups([StackGroup({"a": (0,)}, (), text, text)]))
    return "\n".join(f"  {line}" for line in format_groups(groups))


# --- workers --------------------------------------------------------------------------------------


def report_of(failure):
    error = ChildFailedError("train.py", {0: failure})
    return f"{failure.headline}\n{error.for_console()}\n{error}"


@boundary()
def error_file_of_a_worker(text, folder):
    path = folder / "error.json"
    extra = {"py_callstack": text, "timestamp": "1"}
    path.write_text(json.dumps({"message": {"message": text, "extraInfo": extra}}))
    return report_of(ProcessFailure(0, 7, 1, str(path)))


@boundary("plaunch_logs_default.streams.sinks")
def last_lines_of_a_worker(text):
    return report_of(ProcessFailure(0, 7, 1, "", last_lines=text.split("\n")))


@boundary("plaunch_hang.stacks.py_spy")
def stack_of_a_worker(text):
    from plaunch_hang.stacks.py_spy import explain, parse_threads

    frame = {"name": text, "filename": text, "line": 1}
    thread = {"thread_name": text, "os_thread_id": 7, "frames": [frame], "owns_gil": False}
    (found,) = parse_threads(json.dumps([thread]).encode(), 7)
    names = (found.name, *(part for one in found.frames for part in (one.function, one.file)))
    return "\n".join([*names, str(explain(text))])


# --- processes and files --------------------------------------------------------------------------


@boundary("plaunch.process.proc", "plaunch_hang.stacks.taking")
def title_of_a_process(text, folder):
    from plaunch_hang.stacks.taking import read_title

    (folder / "7").mkdir()
    (folder / "7" / "comm").write_bytes(text.encode(errors="replace"))
    (folder / "7" / "cmdline").write_bytes(text.replace("\0", "").encode(errors="replace") + b"\0")
    return f"{read_name(7, str(folder))} {read_title(7, str(folder))}"


@boundary("plaunch.plugin.metadata")
def installed_plugin(text, folder):
    from plaunch.plugin.metadata import scan

    info = folder / "evil-1.dist-info"
    info.mkdir()
    line = text.replace("\n", " ").replace("\r", " ")
    (info / "METADATA").write_text(f"Name: {line}\nVersion: {line}\n", errors="replace")
    content = f"[plaunch.plugins]\n{line.replace('=', '')} = evil\n"
    (info / "entry_points.txt").write_text(content, errors="replace")
    (entry,) = scan(["plaunch.plugins"], [str(folder)])
    return f"{entry.name} {entry.distribution.name} {entry.distribution.version}"


@boundary()
def exception_of_a_plugin(text):
    return one_line(ValueError(text))


@boundary("plaunch_report.bundles")
def report_in_a_bundle(text, folder):
    import zipfile

    from plaunch_report.bundles import open_bundle

    with zipfile.ZipFile(folder / "b.zip", "w") as archive:
        archive.writestr("report.txt", text)
    with open_bundle(str(folder / "b.zip")) as bundle:
        return bundle.report


@boundary()
def finding_of_the_doctor(text):
    from plaunch.doctor import Finding, Status
    from plaunch_doctor.findings import format_findings

    return format_findings([Finding(Status.OK, "gpu", text)])


# --- engines and schedulers -----------------------------------------------------------------------


@boundary("plaunch_engines.agents")
def node_of_an_engine(text):
    from plaunch_engines.agents import ConnectedNode
    from plaunch_engines.records import encode

    read, write = os.pipe()
    out, end = os.pipe()
    handle = SimpleNamespace(
        node=text, address="", stdout=out, stderr=read, poll=lambda: 1, close=str, stop=str
    )
    node = ConnectedNode(0, handle, 0.0, lambda: 1.0)
    plan = SimpleNamespace(start_timeout=1.0)
    hello = {"protocol": 9, "version": text[:4000], "python": text[:4000], "host": text[:4000]}
    lines = text.encode(errors="replace")[:50_000]
    try:
        os.write(write, lines + b"\n")
        [*node.read(read)]
        before = node.problem(plan)
        os.write(write, encode("", kind="hello", **hello))
        [*node.read(read)]
        return "\n".join((node.name, before, node.difference(plan), node.address))
    finally:
        for fd in (read, write, out, end):
            os.close(fd)


@boundary()
def pod_of_kubernetes(text):
    from plaunch_engines.kubernetes_pods import read_pod

    ended = {"exitCode": 1, "reason": text, "message": text}
    status = {
        "phase": "Failed",
        "containerStatuses": [{"name": "node", "state": {"terminated": ended}}],
    }
    pod = {"metadata": {"name": "job-0", "annotations": {}, "labels": {}}, "status": status}
    return read_pod(pod).describe_end()


@boundary()
def api_of_kubernetes(text):
    from plaunch_engines.kubernetes_client import Cluster

    explain = Cluster._explain
    body = json.dumps({"message": text}).encode()
    cluster = SimpleNamespace(host="https://api")
    return explain(cluster, 500, body) + explain(cluster, 500, text.encode(errors="replace"))


@boundary()
def hosts_of_a_scheduler(text):
    from plaunch_network import expand_hostlist

    try:
        return " ".join(expand_hostlist(text))[:4000]
    except UsageError as error:
        return str(error)


# --- the checks -----------------------------------------------------------------------------------

# Modules whose text never reaches a message: what they read is data, goes on to workers or into
# files as it is, or is shown with `repr`.
ELSEWHERE = {
    "plaunch.process.watches": "paths and numbers of cgroups",
    "plaunch_doctor.health_command": "printable: tests/doctor/health/test_command.py",
    "plaunch_preload.fork_server": "printable, line by line",
    "plaunch_control.folder": "plaunchctl prints with printable: tests/control/test_status.py",
    "plaunch_engines.kubernetes_client": "api_of_kubernetes",
    "plaunch_engines.kubernetes_logs": "lines of workers, which stay as they are",
    "plaunch_engines.ray_engine": "printable_output",
    "plaunch_engines.slurm_allocation": "is printed as lines, which slurm_steps reads",
    "plaunch_engines.slurm_steps": "printable, line by line",
    "plaunch_events.redaction": "is encoded again",
    "plaunch_hang.heartbeats": "printable: tests/hang/test_heartbeats.py",
    "plaunch_logs_default.streams.json_lines": "becomes JSON",
    "plaunch_rendezvous_c10d.endpoint": "is shown with repr",
    "plaunch_report.event_files": "is shown with repr, or on a page that escapes all values",
    "plaunch_report.failure_bundle.commands": "goes into files of a bundle",
    "plaunch_report.failure_bundle.system": "goes into files of a bundle",
    "plaunch_torchrun.tail_log": "lines of workers, which stay as they are",
    "plaunch_worker_store.hosting": "printable, line by line",
}


@pytest.fixture
def send(tmp_path):
    def send(name, text):
        function, _ = BOUNDARIES[name]
        takes_folder = function.__code__.co_argcount > 1
        return function(text, tmp_path) if takes_folder else function(text)

    return send


# A server that is not a store is named, not quoted.
@pytest.mark.parametrize("name", sorted(BOUNDARIES.keys() - {"server_that_has_proved_nothing"}))
def test_plain_text_arrives(name, send):
    assert "node-17" in send(name, "node-17")


@pytest.mark.parametrize("name", BOUNDARIES)
@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_text_from_outside_is_harmless_in_a_message(name, number, send):
    message = send(name, HOSTILE[number])
    assert_harmless(message, most=100_000)
    assert f"\n{FORGED}" not in message
    assert_harmless(Stderr().format(message, "ERROR"), most=100_000)


def test_all_modules_that_decode_bytes_of_others_are_known():
    known = {*ELSEWHERE}.union(*(modules for _, modules in BOUNDARIES.values()))
    found = {
        name
        for name, tree in parse_all().items()
        if not name.startswith("plaunch_testing.") and ".testing" not in name
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "decode"
        and (any(one.arg == "errors" for one in node.keywords) or _is_lenient(node.args))
    }
    assert found == known


def _is_lenient(args):
    texts = [one.value for one in args if isinstance(one, ast.Constant)]
    return "latin-1" in texts or (len(args) > 1 and len(texts) == len(args))


# Modules that parse JSON or TOML of plaunch's own processes, which are trusted, and one other.
TRUSTED = {
    "plaunch.events": "what `Event.serialize` has written, for programs",
    "plaunch_engines.node": "the command's lines, before and after its settings",
    "plaunch_engines.ray_client": "the command's messages",
    "plaunch_engines.ray_engine": "messages of the process that the command has started",
    "plaunch_hang.records": "what `dump_groups` has written",
    "plaunch_rendezvous_static.messages": "not trusted: `_INVALID` has RecursionError",
    "plaunch_torchrun.elastic.events": "what `RdzvEvent.serialize` has written, for programs",
}
_PARSERS = {"loads", "load", "raw_decode"}
_FORMATS = {"json", "toml", "JSONDecoder"}


def find_unguarded(tree):
    """Yield the lines that parse a text where deep nesting, a RecursionError, is not expected."""

    def visit(node, is_expected):
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            is_expected = False
        if isinstance(node, ast.Try):
            names = {name.id for one in node.handlers for name in _names(one.type)}
            for inner in node.body:
                yield from visit(inner, is_expected or "RecursionError" in names)
            for inner in (*node.handlers, *node.orelse, *node.finalbody):
                yield from visit(inner, is_expected)
            return
        if isinstance(node, ast.With):
            names = {name.id for one in node.items for name in _names(one.context_expr)}
            is_expected = is_expected or {"suppress", "RecursionError"} <= {
                *names,
                *(one.attr for item in node.items for one in _attributes(item.context_expr)),
            }
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            words = {name.id for name in _names(node.func)}
            words |= {one.attr for one in _attributes(node.func)}
            if node.func.attr in _PARSERS and words & _FORMATS and not is_expected:
                yield node.lineno
        for inner in ast.iter_child_nodes(node):
            yield from visit(inner, is_expected)

    yield from visit(tree, False)


def _names(node):
    return [one for one in ast.walk(node) if isinstance(one, ast.Name)] if node else []


def _attributes(node):
    return [one for one in ast.walk(node) if isinstance(one, ast.Attribute)]


def test_deep_nesting_in_a_text_of_others_is_expected():
    """Python's parsers raise RecursionError for it, which is not a ValueError."""
    found = {
        name: lines
        for name, tree in parse_all().items()
        if not name.startswith("plaunch_testing.") and ".testing" not in name
        if (lines := [*find_unguarded(tree)]) and name not in TRUSTED
    }
    assert found == {}
