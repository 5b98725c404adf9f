"""Records that are equal by their attributes."""

from __future__ import annotations

from plaunch.values import Value, plain_dataclass


@plain_dataclass
class Point(Value):
    x: int
    y: int = 0


@plain_dataclass
class Place(Value):
    x: int
    y: int = 0


class EqualToAll:
    def __eq__(self, other):
        return True

    __hash__ = None


def test_equality_is_by_class_and_attributes():
    assert Point(1) == Point(1, 0)
    assert Point(1) != Point(2)
    assert (Point(1) == Place(1)) is False
    assert (Point(1) == 1) is False
    assert Point(1) == EqualToAll()  # the other one is asked
