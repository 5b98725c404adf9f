"""The version of plaunch; everything else reads it from here."""

__version__ = "0.1.0"
