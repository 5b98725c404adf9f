"""What the tests of this folder share."""

from __future__ import annotations

import importlib.util
import pathlib
import sys

_SPEC = importlib.util.spec_from_file_location(
    "streams", pathlib.Path(__file__).with_name("streams.py")
)
streams = importlib.util.module_from_spec(_SPEC)
sys.modules["streams"] = streams
_SPEC.loader.exec_module(streams)
