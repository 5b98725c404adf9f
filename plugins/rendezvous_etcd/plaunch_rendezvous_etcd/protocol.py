"""The one place where grpc and protobuf are imported, and etcd's protocol is read from etcd3.

etcd3's generated modules are refused by protobuf's C implementation from version 4 on, and its
client has traps (a watcher that spins, one endpoint, calls without an end). So neither is imported:
the descriptions of etcd's messages, which the generated modules hold as bytes, are put into a pool
of our own. That works with every loaded protobuf, and no other code sees it.
"""

from __future__ import annotations

import ast
import os
import threading
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from plaunch.errors import PluginLoadError

_FILES = ("kv_pb2.py", "auth_pb2.py", "rpc_pb2.py")  # each needs the ones before
_BEGIN = "serialized_pb="
_VERBOSITY = "GRPC_VERBOSITY"


@dataclass(frozen=True)
class Method:
    """One of etcd's remote procedures.

    Args:
        path: its name on the wire.
        encode: turns a request into bytes.
        decode: turns bytes into a response.
    """

    path: str
    encode: Any
    decode: Any


class Protocol:
    """etcd's messages by name, and its remote procedures.

    Args:
        grpc: the module.
        pool: the descriptor pool that knows etcd's protocol.
        create_class: makes a message class of a descriptor.
    """

    def __init__(self, grpc: Any, pool: Any, create_class: Any) -> None:
        self.grpc = grpc
        self._pool = pool
        self._create_class = create_class
        self._classes: dict[str, Any] = {}
        self._creating = threading.Lock()

    def message(self, name: str) -> Any:
        """The class of a message, such as `PutRequest`."""
        found = self._classes.get(name)
        if found is not None:
            return found
        # Two threads that make the class of one message at the same time make two of it, and
        # protobuf forgets one of them while it is in use, which ends the process.
        with self._creating:
            if name not in self._classes:
                descriptor = self._pool.FindMessageTypeByName(f"etcdserverpb.{name}")
                self._classes[name] = self._create_class(descriptor)
            return self._classes[name]

    def method(self, service: str, name: str) -> Method:
        """A procedure, such as `KV` and `Txn`."""
        found = self._pool.FindServiceByName(f"etcdserverpb.{service}").FindMethodByName(name)
        return Method(
            f"/etcdserverpb.{service}/{name}",
            self.message(found.input_type.name).SerializeToString,
            self.message(found.output_type.name).FromString,
        )


def load_protocol() -> Protocol:
    """Import grpc and protobuf, which takes about 0.1 s, and read etcd's protocol.

    grpc's C++ side prints every error, also of calls that are tried again. It reads its log level
    when it is loaded, so the level is set for that long only and never reaches the workers.

    Raises:
        PluginLoadError: a package is missing, or cannot be used.
    """
    is_ours = _VERBOSITY not in os.environ
    if is_ours:
        os.environ[_VERBOSITY] = "NONE"
    try:
        import grpc
        from google.protobuf import descriptor_pool, message_factory

        pool = descriptor_pool.DescriptorPool()
        for file in _read_descriptions():
            pool.AddSerializedFile(file)
        create_class = getattr(message_factory, "GetMessageClass", None)
        if create_class is None:  # protobuf before 4.22
            create_class = message_factory.MessageFactory(pool).GetPrototype
        with grpc.insecure_channel("ipv4:127.0.0.1:1"):
            pass  # the level is read now, at the latest
        return Protocol(grpc, pool, create_class)
    except (ImportError, OSError, ValueError, TypeError, SyntaxError) as error:
        text = " ".join(str(error).split())
        advice = "; pip install 'plaunch[etcd]'" if isinstance(error, ModuleNotFoundError) else ""
        raise PluginLoadError(
            f"rendezvous backend 'etcd-v2' cannot be loaded: {type(error).__name__}: {text}{advice}"
        ) from error
    finally:
        if is_ours:
            os.environ.pop(_VERBOSITY, None)


def _read_descriptions() -> list[bytes]:
    """The serialized file descriptors in etcd3's generated modules, without running those.

    Raises:
        ImportError: etcd3 is missing, or is not as expected.
    """
    spec = find_spec("etcd3")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'etcd3'", name="etcd3")
    folder = os.path.join(spec.submodule_search_locations[0], "etcdrpc")
    found = []
    for name in _FILES:
        # Line by line: the syntax tree of the whole module would take 12 MB.
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            for line in file:
                text = line.strip()
                if text.startswith(_BEGIN):
                    found.append(_read_literal(text[len(_BEGIN) :].rstrip(",")))
                    break
            else:
                raise ImportError(f"{name} of the installed etcd3 does not describe etcd's API")
    return found


def _read_literal(text: str) -> bytes:
    """The bytes of a literal, or of one that a function makes of a text in Latin-1."""
    if text.startswith("_b("):
        text = text[len("_b(") :].rstrip().removesuffix(")")
    value = ast.literal_eval(text)
    return value if isinstance(value, bytes) else str(value).encode("latin-1")
