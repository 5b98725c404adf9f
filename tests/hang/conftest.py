"""What tests of the watch need from the machine."""

from helpers.stacks import readable_stacks

__all__ = ["readable_stacks"]
