"""A folder that looks like site-packages; a conftest whose tests need one imports the fixtures."""

from __future__ import annotations

import importlib
import sys
import textwrap
from pathlib import Path

import pytest
from plaunch.plugin.manager import PluginManager

DATA = Path(__file__).parent.parent / "data"


class Site:
    """Packages that a test installs in addition to plaunch; removed after the test."""

    def __init__(self, folder: Path, own: str) -> None:
        self.folder = folder
        self.path = [str(folder), own]

    def install(
        self,
        name: str,
        entry_points: dict[str, dict[str, str]] | str,
        *,
        version: str = "1.0",
        metadata_name: str | None = None,
        **modules: str,
    ) -> Path:
        info = self.folder / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        metadata = f"Metadata-Version: 2.1\nName: {metadata_name or name}\nVersion: {version}\n"
        (info / "METADATA").write_text(metadata)
        if not isinstance(entry_points, str):
            entry_points = "\n".join(
                "\n".join([f"[{group}]", *(f"{key} = {value}" for key, value in lines.items())])
                for group, lines in entry_points.items()
            )
        (info / "entry_points.txt").write_text(textwrap.dedent(entry_points))
        for module, source in modules.items():
            (self.folder / f"{module}.py").write_text(textwrap.dedent(source))
        importlib.invalidate_caches()
        return info

    def manager(self, *words: str, plugins: tuple[object, ...] = (), **environ: str):
        return PluginManager.create(plugins, words=words, environ=environ, path=self.path)


@pytest.fixture(scope="session")
def own_metadata(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with only plaunch's own metadata."""
    import importlib_metadata

    folder = tmp_path_factory.mktemp("own")
    installed = importlib_metadata.distribution("plaunch")
    info = folder / f"plaunch-{installed.version}.dist-info"
    info.mkdir()
    for file in ("METADATA", "entry_points.txt"):
        (info / file).write_text(installed.read_text(file) or "")
    return str(folder)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_metadata: str):
    before = set(sys.modules)
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield Site(folder, own_metadata)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(folder)):
            del sys.modules[name]


@pytest.fixture
def checked_in(monkeypatch: pytest.MonkeyPatch, own_metadata: str):
    """Install a package of tests/data; return a function that creates a manager."""

    def install(package: str):
        folder = str(DATA / package)
        monkeypatch.syspath_prepend(folder)

        def manager(*words: str, **environ: str):
            return PluginManager.create(words=words, environ=environ, path=[folder, own_metadata])

        return manager

    return install
