"""Functions that fail, for whatever is to call them."""

from __future__ import annotations


def raising(error: BaseException):
    """A function that raises this error, whatever it is given."""

    def fail(*given: object, **named: object):
        raise error

    return fail
