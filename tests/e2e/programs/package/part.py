"""A part of it."""

NAME = __name__
