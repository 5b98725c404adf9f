from __future__ import annotations

from helpers.error_files import child_file

__all__ = ["child_file"]
