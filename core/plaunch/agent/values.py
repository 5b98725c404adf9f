"""Small values that are made by the dozen: what they are made of is all that they are."""

from __future__ import annotations


class Value:
    """Equal to another one of its class with the same attributes; not to be changed.

    For dataclasses that leave equality and representation to it: for a frozen class, `dataclass`
    writes and compiles six functions, which for three dozen was a tenth of a launcher's start.
    """

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((type(self), *self.__dict__.values()))

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{type(self).__name__}({values})"
