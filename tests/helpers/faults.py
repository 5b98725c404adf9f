"""Functions that raise."""

from __future__ import annotations

import socket


def raising(error: BaseException):
    """Return a function that takes any arguments and raises this error."""

    def fail(*given: object, **named: object):
        raise error

    return fail


def refuse_to_bind(monkeypatch, error: BaseException, family=None):
    """Make `bind` raise this error for Internet sockets, or for those of one family."""
    families = (socket.AF_INET, socket.AF_INET6) if family is None else (family,)
    bind = socket.socket.bind

    def refuse(sock, address):
        if sock.family in families:
            raise error
        bind(sock, address)

    monkeypatch.setattr(socket.socket, "bind", refuse)
