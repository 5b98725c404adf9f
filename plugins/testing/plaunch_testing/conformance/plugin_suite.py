"""The base class of the suites that need a single node."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import pytest
from plaunch import LaunchConfig
from plaunch.plugin import PluginContext

from plaunch_testing.conformance.surroundings import (
    descriptors,
    imports,
    inherited,
    unchanged_process,
    within,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    T = TypeVar("T")

_IMPORT_TIMEOUT = 60.0  # seconds; a busy machine may take long to read files
_IMPORT = """\
import importlib, sys
sys.path[:] = {path!r}
importlib.import_module({module!r})
print("loaded", *({{"torch"}} & set(sys.modules)))
"""


class PluginSuite:
    """The interface of the suites, and the checks for every kind of plugin."""

    seconds: ClassVar[float] = 5.0  # for each call
    module: ClassVar[str] = ""  # imported by a launch; default: the plugin's own
    is_for_torch: ClassVar[bool] = False  # whether it was written for torchrun, and imports torch
    settings: ClassVar[Mapping[str, object]] = {}  # changed fields of the launch
    options: ClassVar[Mapping[str, object]] = {}  # the plugin's options

    def plugin(self) -> Any:
        """Return the object that the plugin's name refers to; override this."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _surroundings(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self.folder = str(tmp_path_factory.mktemp("conformance"))
        self.files_before = descriptors()

    @functools.cached_property
    def thing(self) -> Any:
        """The plugin, looked up once for each test."""
        return self.plugin()

    def context(self, **changes: Any) -> PluginContext:
        """Return the context of a launch with logs in a folder of this test."""
        settings = {**LaunchConfig(1, 1, 2).settings(), **self.settings}
        run_dir = os.path.join(self.folder, "conformance_0")
        os.makedirs(run_dir, exist_ok=True)
        fields: dict[str, Any] = {
            "run_id": "conformance",
            "role": "default",
            "host": "node0",
            "log_dir": self.folder,
            "run_dir": run_dir,
            "settings": {**settings, "run_id": "conformance"},
            "options": dict(self.options),
        }
        return PluginContext(**{**fields, **changes})

    def call(self, what: str, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call a function of the plugin on a new thread; fail after `seconds`."""
        return within(self.seconds, what, lambda: function(*args, **kwargs))

    def use_once(self) -> object:
        """Use the plugin as a launch does, and return what must stay open."""
        raise NotImplementedError

    def end_use(self) -> None:
        """Clean up after `use_once` as the end of a launch does."""

    def test_importing_it_does_not_import_torch(self) -> None:
        """A launch imports the modules of selected plugins, and importing torch takes seconds."""
        if self.is_for_torch:
            pytest.skip("it was written for torchrun, and imports torch")
        # `thing` may be a module itself.
        module = self.module or getattr(self.thing, "__module__", "") or self.thing.__name__
        done = subprocess.run(  # noqa: PLW1510 - checked below
            [sys.executable, "-c", _IMPORT.format(path=sys.path, module=module)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_IMPORT_TIMEOUT,
        )
        if f"No module named {module!r}" in done.stderr:
            pytest.skip(f"module {module!r} is a test file, which other processes cannot import")
        assert done.returncode == 0, f"module {module!r} cannot be imported:\n{done.stderr}"
        assert "loaded torch" not in done.stdout, f"importing {module!r} imports torch"

    def test_using_it_does_not_import_torch(self) -> None:
        """The launcher runs without torch."""
        if self.is_for_torch:
            pytest.skip("it was written for torchrun, and imports torch")
        assert self.thing is not None  # look it up before watching imports
        with imports() as names:
            self.use_once()
            self.end_use()
        assert "torch" not in names, "it imports torch in the launcher"

    def test_it_leaves_the_process_as_it_was(self) -> None:
        """It does not change the environment, working folder or signal handlers of workers."""
        with unchanged_process():
            self.use_once()

    def test_workers_inherit_nothing_from_it(self) -> None:
        """Its files and sockets are close-on-exec."""
        used = self.use_once()
        found = inherited(self.files_before)
        assert not found, f"workers inherit {found}"
        del used
