"""torch's TCPStore, with the server and client that torch was built with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def create_tcp_store(create: Callable[..., Any], **options: Any) -> Any:
    """Create a TCPStore of torch, as its server or as a client.

    torch has two implementations. The default one uses libuv, which Debian's packages of torch
    lack, and then even a client must ask for the other one. Both speak the same protocol.

    Args:
        create: `torch.distributed.TCPStore`.
        options: its arguments, without `use_libuv`.

    Raises:
        RuntimeError: the store cannot be created.
    """
    try:
        return create(**options)
    except RuntimeError as error:
        # torch checks it first, so a socket among the options still belongs to this process.
        if "without libuv" not in str(error):
            raise
    return create(**options, use_libuv=False)
