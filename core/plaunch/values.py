"""Base classes of plain data, with equality and a representation."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass
from typing import TYPE_CHECKING

__all__ = ["Record", "Value", "plain_dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass as plain_dataclass
else:

    def plain_dataclass(cls):
        """Make a dataclass whose base provides equality and representation.

        `dataclass` generates and compiles a function for each, which took a tenth of a launcher's
        start-up time for sixty classes.
        """
        return dataclass(eq=False, repr=False)(cls)


class Record:
    """Equal to another object of its class with the same attributes.

    A base of classes with `@plain_dataclass`.
    """

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]  # it may change

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{type(self).__qualname__}({values})"


class Value(Record):
    """An immutable `Record`, as a frozen dataclass: each attribute is set once."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in self.__dict__:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __hash__(self) -> int:  # type: ignore[override]
        return hash((type(self), *self.__dict__.values()))
