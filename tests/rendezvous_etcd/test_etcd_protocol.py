"""Loading grpc, protobuf and etcd's protocol, in a process of its own."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from plaunch.errors import PluginLoadError
from plaunch_rendezvous_etcd import protocol

from helpers.calls import at_once
from helpers.programs import run_python

ROUND_TRIP = """
import json, os, sys
{before}
from plaunch_rendezvous_etcd.protocol import load_protocol
protocol = load_protocol()
put = protocol.message("PutRequest")
request = put(key=b"k", value=b"v", ignore_value=True)
assert put.FromString(request.SerializeToString()) == request
assert protocol.method("KV", "Txn").path == "/etcdserverpb.KV/Txn"
from google.protobuf.internal import api_implementation
{after}
print(json.dumps({{
    "implementation": api_implementation.Type(),
    "etcd3": sorted(m for m in sys.modules if m.startswith("etcd3")),
    "verbosity": os.environ.get("GRPC_VERBOSITY"),
    "memory": next(int(x.split()[1]) for x in open("/proc/self/status") if "VmHWM" in x) / 1024,
    "heavy": sorted({{"torch", "tenacity"}} & set(sys.modules)),
}}))
"""


def run(before="", after="", **environ):
    done = run_python(
        "-c", ROUND_TRIP.format(before=before, after=after), env={**os.environ, **environ}
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_nothing_is_loaded_before_a_handler_is_created():
    code = (
        "import sys, plaunch_rendezvous_etcd\n"
        "print(sorted({'grpc', 'google.protobuf', 'etcd3', 'torch', 'ssl'} & set(sys.modules)))"
    )
    assert run_python("-c", code).stdout == "[]\n"


@pytest.mark.parametrize("implementation", ["", "python"])
@pytest.mark.parametrize(
    "before",
    [
        "",
        "import google.protobuf.struct_pb2",
        # Another library's messages, with the same names of files and packages as etcd3's.
        "from google.protobuf import descriptor_pb2, descriptor_pool\n"
        "file = descriptor_pb2.FileDescriptorProto(name='rpc.proto', package='etcdserverpb')\n"
        "file.message_type.add(name='PutRequest')\n"
        "descriptor_pool.Default().Add(file) if hasattr(descriptor_pool.Default(), 'Add') else "
        "descriptor_pool.Default().AddSerializedFile(file.SerializeToString())",
    ],
    ids=["first", "protobuf before", "same names before"],
)
def test_the_protocol_works_with_any_protobuf(before, implementation):
    environ = {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation} if implementation else {}
    found, errors = run(before, **environ)
    assert found["implementation"] == (implementation or "upb")
    assert found["etcd3"] == []  # so a user's own import is not affected
    assert found["verbosity"] is None
    assert errors == ""


def test_loading_it_is_light():
    found, _ = run()
    assert found["heavy"] == []
    assert found["memory"] < 50


def test_a_verbosity_set_by_the_user_is_kept():
    assert run(GRPC_VERBOSITY="ERROR")[0]["verbosity"] == "ERROR"


@pytest.mark.parametrize("name", ["grpc", "google.protobuf"])
def test_a_missing_package_is_reported_with_the_command_to_install_it(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(PluginLoadError, match=r"pip install 'plaunch\[etcd\]'"):
        protocol.load_protocol()


def test_a_missing_etcd3_is_reported_with_the_command_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "etcd3", None)
    with pytest.raises(PluginLoadError, match=r"'etcd3'; pip install 'plaunch\[etcd\]'"):
        protocol.load_protocol()


def test_an_unexpected_etcd3_is_reported(monkeypatch, tmp_path):
    (tmp_path / "etcd3" / "etcdrpc").mkdir(parents=True)
    (tmp_path / "etcd3" / "__init__.py").touch()
    (tmp_path / "etcd3" / "etcdrpc" / "kv_pb2.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PluginLoadError, match=r"kv_pb2.py of the installed etcd3 does not desc"):
        protocol.load_protocol()


@pytest.mark.parametrize(
    "text", [r"_b('a\x00\xff')", r"b'a\x00\xff'", r"_b('a\x00' '\xff')", r"b'a' b'\x00\xff'"]
)
def test_descriptions_of_all_generators_are_read(text):
    assert protocol.read_literal(text) == b"a\0\xff"


def test_many_threads_share_one_class_of_a_message():
    """protobuf crashes the process if there are two, and one of them is released."""
    begin = threading.Barrier(16)

    def slowly(descriptor):
        time.sleep(0.01)
        return object()

    pool = SimpleNamespace(FindMessageTypeByName=str)
    loaded = protocol.Protocol(None, pool, slowly)

    def ask():
        begin.wait()
        return loaded.message("WatchCancelRequest")

    found = at_once(*[ask] * 16)
    assert len(set(map(id, found))) == 1
