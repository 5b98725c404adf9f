"""What tests of devices share."""

from __future__ import annotations

import pytest


@pytest.fixture
def root(tmp_path):
    """A file system that has only the files, and the links, that the test names."""

    def make(files, links=None):
        texts = files if isinstance(files, dict) else dict.fromkeys(files, "")
        for name, text in texts.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        for name, target in (links or {}).items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(tmp_path / target)
        return str(tmp_path)

    return make
