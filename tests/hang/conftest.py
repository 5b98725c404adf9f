"""Requirements of these tests on the machine."""

from helpers.stacks import readable_stacks

__all__ = ["readable_stacks"]
