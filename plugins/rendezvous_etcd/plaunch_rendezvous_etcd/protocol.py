"""The only module that imports grpc and protobuf; it reads etcd's protocol from etcd3.

protobuf's C implementation rejects etcd3's generated modules from version 4 on, and etcd3's client
has defects (a watcher that spins, a single endpoint, calls without a timeout). So neither is
imported. The descriptions of etcd's messages, which the generated modules contain as bytes, are
loaded into a private descriptor pool. This works with every version of protobuf, and does not
affect other code.
"""

from __future__ import annotations

import ast
import contextlib
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
        encode: serializes a request.
        decode: parses a response.
    """

    path: str
    encode: Any
    decode: Any


class Protocol:
    """etcd's messages by name, and its remote procedures.

    Args:
        grpc: the module.
        pool: the descriptor pool with etcd's protocol.
        create_class: creates a message class from a descriptor.
    """

    def __init__(self, grpc: Any, pool: Any, create_class: Any) -> None:
        self.grpc = grpc
        self._pool = pool
        self._create_class = create_class
        self._classes: dict[str, Any] = {}
        self._creating = threading.Lock()

    def message(self, name: str) -> Any:
        """Return the class of a message, such as `PutRequest`."""
        found = self._classes.get(name)
        if found is not None:
            return found
        # If two threads created the class of one message, protobuf would release one of the two
        # while it is in use, and crash the process.
        with self._creating:
            if name not in self._classes:
                descriptor = self._pool.FindMessageTypeByName(f"etcdserverpb.{name}")
                self._classes[name] = self._create_class(descriptor)
            return self._classes[name]

    def method(self, service: str, name: str) -> Method:
        """Return a procedure, such as `Txn` of the service `KV`."""
        found = self._pool.FindServiceByName(f"etcdserverpb.{service}").FindMethodByName(name)
        return Method(
            f"/etcdserverpb.{service}/{name}",
            self.message(found.input_type.name).SerializeToString,
            self.message(found.output_type.name).FromString,
        )

    @staticmethod
    def end_stream(stream: Any) -> None:
        """Cancel a stream of answers, and free it; does nothing if it has ended.

        Call it from the thread that reads the stream. grpc frees a stream only when its last events
        are read (20 kB each), and has no public method that reads them after a cancellation.
        """
        stream.cancel()
        with contextlib.suppress(AttributeError):
            while stream._state.due:
                stream._consume_next_event()


def load_protocol() -> Protocol:
    """Import grpc and protobuf, which takes about 0.1 s, and read etcd's protocol.

    grpc's C++ side prints every error, also of calls that are retried. It reads its log level when
    it is loaded, so the variable is set only for the import and never reaches the workers.

    Raises:
        PluginLoadError: a package is missing, or cannot be used.
    """
    sets_level = _VERBOSITY not in os.environ
    if sets_level:
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
            pass  # grpc reads the level here at the latest
        return Protocol(grpc, pool, create_class)
    except (ImportError, OSError, ValueError, TypeError, SyntaxError) as error:
        text = " ".join(str(error).split())
        advice = "; pip install 'plaunch[etcd]'" if isinstance(error, ModuleNotFoundError) else ""
        raise PluginLoadError(
            f"rendezvous backend 'etcd-v2' cannot be loaded: {type(error).__name__}: {text}{advice}"
        ) from error
    finally:
        if sets_level:
            os.environ.pop(_VERBOSITY, None)


def _read_descriptions() -> list[bytes]:
    """Return the serialized file descriptors in etcd3's generated modules, without running those.

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
                    found.append(read_literal(text[len(_BEGIN) :].rstrip(",")))
                    break
            else:
                raise ImportError(f"{name} of the installed etcd3 does not describe etcd's API")
    return found


def read_literal(text: str) -> bytes:
    """Evaluate a bytes literal, or a string literal in Latin-1, possibly wrapped in `_b()`."""
    if text.startswith("_b("):
        text = text[len("_b(") :].rstrip().removesuffix(")")
    value = ast.literal_eval(text)
    return value if isinstance(value, bytes) else str(value).encode("latin-1")
