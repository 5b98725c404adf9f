"""What the suites for the kinds of plugins that have no other nodes to meet share."""

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
    left_alone,
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
    """The part of the suites that their authors see, and what holds for every kind."""

    seconds: ClassVar[float] = 5.0  # how long any call may take
    module: ClassVar[str] = ""  # what a launch imports; by default where the plugin is defined
    is_for_torch: ClassVar[bool] = False  # whether it was written for torchrun, and imports torch
    settings: ClassVar[Mapping[str, object]] = {}  # fields of the launch that have other values
    options: ClassVar[Mapping[str, object]] = {}  # options given for the plugin

    def plugin(self) -> Any:
        """What the plugin's name gives; to be overridden."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _surroundings(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self.folder = str(tmp_path_factory.mktemp("conformance"))
        self.files_before = descriptors()

    @functools.cached_property
    def thing(self) -> Any:
        """The plugin, looked up once in a test."""
        return self.plugin()

    def context(self, **changes: Any) -> PluginContext:
        """The context of a launch with logs in a folder of this test."""
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
        """Call something of the plugin's, on a thread of its own and within `seconds`."""
        return within(self.seconds, what, lambda: function(*args, **kwargs))

    def use_once(self) -> object:
        """Do with the plugin what a launch does when it is chosen; what comes of it stays open."""
        raise NotImplementedError

    def end_use(self) -> None:
        """Do with what `use_once` has left what the end of a launch does."""

    def test_importing_it_does_not_import_torch(self) -> None:
        """A launch imports the module of a chosen plugin, and torch costs it seconds."""
        if self.is_for_torch:
            pytest.skip("it was written for torchrun, and imports torch")
        # A module is where it is defined itself.
        module = self.module or getattr(self.thing, "__module__", "") or self.thing.__name__
        done = subprocess.run(  # noqa: PLW1510 - said below
            [sys.executable, "-c", _IMPORT.format(path=sys.path, module=module)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_IMPORT_TIMEOUT,
        )
        if f"No module named {module!r}" in done.stderr:
            pytest.skip(f"module {module!r} is a file of tests, and cannot be imported elsewhere")
        assert done.returncode == 0, f"module {module!r} cannot be imported:\n{done.stderr}"
        assert "loaded torch" not in done.stdout, f"importing {module!r} imports torch"

    def test_using_it_does_not_import_torch(self) -> None:
        """Nor does making use of it: the launcher does without."""
        if self.is_for_torch:
            pytest.skip("it was written for torchrun, and imports torch")
        assert self.thing is not None  # looked up before it is watched
        with imports() as names:
            self.use_once()
            self.end_use()
        assert "torch" not in names, "it imports torch in the launcher"

    def test_it_leaves_the_process_as_it_was(self) -> None:
        """Environment, folder, signal handlers: workers get what the user has set."""
        with left_alone():
            self.use_once()

    def test_workers_inherit_nothing_of_it(self) -> None:
        """No open file or socket of it is passed on to programs."""
        used = self.use_once()
        found = inherited(self.files_before)
        assert not found, f"workers inherit {found}"
        del used
