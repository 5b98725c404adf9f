"""Functions that raise."""

from __future__ import annotations


def raising(error: BaseException):
    """Return a function that takes any arguments and raises this error."""

    def fail(*given: object, **named: object):
        raise error

    return fail
