"""What the tests of this folder share."""

from helpers.gates import gate

__all__ = ["gate"]
