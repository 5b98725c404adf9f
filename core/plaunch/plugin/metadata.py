"""What is installed: the entry points of all distributions.

Entry points are read without importing any distribution. `importlib_metadata` does this too, but
takes as long as three interpreter starts. So this module reads the files itself, and uses it only
if they are not plain files in plain folders. Every command line imports this module.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from plaunch.errors import PluginLoadError, SignalException, one_line
from plaunch.texts import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    import importlib_metadata

FIRST_PARTY = "plaunch"  # the distribution of plaunch's own plugins
_METADATA_FILES = ("METADATA", "PKG-INFO")
_HEAD = 4096  # characters of metadata to search for the name and the version
# The finders that search the folders of sys.path, as this module does.
_FOLDER_FINDERS = frozenset({"PathFinder", "MetadataPathFinder"})


class Distribution(NamedTuple):
    """An installed distribution; `key` is its normalised name.

    `name` is spelled as in its metadata; `version` may be empty.
    """

    key: str
    name: str
    version: str


class Target(NamedTuple):
    """The reference of an entry point: a module, an attribute (may be empty), and extras."""

    module: str
    attribute: str
    extras: tuple[str, ...]

    def load(self) -> Any:
        """Import the module and return the object; raises whatever the import raises."""
        value: Any = importlib.import_module(self.module)
        for part in filter(None, self.attribute.split(".")):
            value = getattr(value, part)
        return value


class EntryPoint(NamedTuple):
    """One line of a distribution's entry points: in `group`, `name = value`."""

    group: str
    name: str
    value: str
    distribution: Distribution

    def target(self) -> Target:
        """Parse the value, `module[:attribute] [extra, ...]`.

        Raises:
            ValueError: the value has another form.
        """
        reference, bracket, rest = self.value.partition("[")
        rest = rest.rstrip()
        if bracket and not rest.endswith("]"):
            raise ValueError(self.value)
        extras = tuple(filter(None, (extra.strip() for extra in rest[:-1].split(","))))
        module, colon, attribute = (part.strip() for part in reference.partition(":"))
        parts = [*module.split("."), *(attribute.split(".") if colon else ())]
        if not all(part.isidentifier() for part in parts):
            raise ValueError(self.value)
        return Target(module, attribute, extras)


@contextlib.contextmanager
def import_errors(
    failure: str,
    *,
    advice: Callable[[BaseException], str] = lambda error: "",
) -> Iterator[None]:
    """Import a plugin on this thread; convert what that raises into an error that names it.

    SystemExit too: it must not end the launch as if it had succeeded. Ctrl-C and signals pass.

    Args:
        failure: the beginning of the message: the plugin, and what failed.
        advice: returns the end of the message for an exception.

    Raises:
        PluginLoadError: the import failed.
    """
    try:
        yield
    except (KeyboardInterrupt, SignalException):
        raise
    except BaseException as error:
        raise PluginLoadError(f"{failure}: {one_line(error)}{advice(error)}") from error


def normalise(name: str) -> str:
    """Return the normalised name of a distribution, the same for all spellings."""
    key = name.lower().replace("-", "_").replace(".", "_")
    while "__" in key:
        key = key.replace("__", "_")
    return key


def scan(groups: Collection[str], path: Sequence[str] | None = None) -> list[EntryPoint]:
    """List the entry points of `groups`, sorted by group, name and distribution.

    If a distribution is installed twice, the first one on the path has priority. A folder without
    metadata, which an interrupted removal leaves, comes last.

    Args:
        groups: names of entry-point groups.
        path: folders to search; by default `sys.path`, and what other finders find.
    """
    found = None
    if path is not None or not _has_other_finders():
        found = _read_folders(groups, sys.path if path is None else path)
    if found is None:
        found = _ask_importlib_metadata(groups, path)
    return sorted(found, key=lambda entry: (entry.group, entry.name, entry.distribution.key))


def parse_entry_points(
    text: str, source: str, groups: Collection[str]
) -> Iterator[tuple[str, str, str]]:
    """Yield (group, name, value) of each line of an `entry_points.txt` in one of `groups`.

    A malformed line is logged with `source` and skipped: a broken distribution must not break every
    launch.
    """
    group = ""
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("[") and line.endswith("]"):
            group = line.strip("[]")
            continue
        if group not in groups:
            continue
        name, equals, value = line.partition("=")
        if not equals:
            _warn("%s has the line %r, which is not NAME = MODULE:OBJECT; ignored", source, line)
            continue
        yield group, printable(name.strip()), value.strip()


def _has_other_finders() -> bool:
    finders = (f for f in sys.meta_path if getattr(f, "find_distributions", None) is not None)
    names = ((f if isinstance(f, type) else type(f)).__name__ for f in finders)
    return not _FOLDER_FINDERS.issuperset(names)


def _read_folders(groups: Collection[str], path: Sequence[str]) -> list[EntryPoint] | None:
    """Read the entry points below `path`; None if an item is not a plain folder."""
    folders: dict[str, list[str]] = {}
    for root in dict.fromkeys(path):
        if root.lower().endswith(".egg"):
            return None
        try:
            children = os.listdir(root or ".")
        except NotADirectoryError:
            return None
        except OSError:
            continue  # it does not exist, or cannot be imported from either
        for child in children:
            if child.lower().endswith((".dist-info", ".egg-info")):
                key = normalise(child.rpartition(".")[0].partition("-")[0])
                folders.setdefault(key, []).append(os.path.join(root, child))
    found: list[EntryPoint] = []
    for key, candidates in folders.items():
        folder = candidates[0]
        if len(candidates) > 1:
            folder = next(filter(_has_metadata, candidates), folder)
        found.extend(_read_folder(groups, key, folder))
    return found


def _read_folder(groups: Collection[str], key: str, folder: str) -> Iterator[EntryPoint]:
    source = os.path.join(folder, "entry_points.txt")
    try:
        with open(source, "rb") as file:
            data = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        _warn("the entry points of an installed package cannot be read: %s", error)
        return
    if not any(group.encode() in data for group in groups):
        return
    distribution = _distribution_at(folder, key)
    text = data.decode("utf-8", errors="replace")
    for group, entry_name, value in parse_entry_points(text, source, groups):
        yield EntryPoint(group, entry_name, value, distribution)


def _has_metadata(folder: str) -> bool:
    return os.path.isfile(folder) or any(
        os.path.exists(os.path.join(folder, file)) for file in _METADATA_FILES
    )


def _distribution_at(folder: str, key: str) -> Distribution:
    # By default the normalised name and version in the folder's name.
    name, _, rest = os.path.basename(folder).rpartition(".")[0].partition("-")
    fields = {"Name": name, "Version": rest.partition("-")[0]}
    for file in _METADATA_FILES:
        try:
            with open(os.path.join(folder, file), encoding="utf-8", errors="replace") as metadata:
                head = metadata.read(_HEAD)
        except OSError:
            continue
        for line in head.splitlines():
            field, colon, value = line.partition(":")
            if not colon:
                break
            if field in fields:
                fields[field] = value.strip() or fields[field]
        break
    return Distribution(key, printable(fields["Name"]), printable(fields["Version"]))


def _ask_importlib_metadata(
    groups: Collection[str], path: Sequence[str] | None
) -> list[EntryPoint]:
    import importlib_metadata  # slow

    context = {} if path is None else {"path": list(path)}
    installed = [(_name_of(each), each) for each in importlib_metadata.distributions(**context)]
    found: dict[str, list[EntryPoint]] = {}
    # The sort is stable: those with metadata come first, and among them the first on the path.
    for (name, version), each in sorted(installed, key=lambda pair: not pair[0][1]):
        key = normalise(name)
        if key in found:
            continue
        distribution = Distribution(key, printable(name), printable(version))
        try:
            found[key] = [
                EntryPoint(entry.group, printable(entry.name), entry.value, distribution)
                for entry in each.entry_points
                if entry.group in groups
            ]
        except Exception as error:  # noqa: BLE001 - of any third-party finder
            _warn("the entry points of distribution %s cannot be read: %s", name, error)
    return [entry for entries in found.values() for entry in entries]


def _name_of(installed: importlib_metadata.IDistribution) -> tuple[str, str]:
    """Return name and version of a distribution; without metadata, its folder's name only."""
    name = version = ""
    # The metadata may be missing, and third-party finders may raise anything.
    with contextlib.suppress(Exception):
        name, version = installed.metadata["Name"] or "", installed.metadata["Version"] or ""
    if name:
        return name, version
    folder = os.path.basename(str(getattr(installed, "_path", installed)))
    return folder.rpartition(".")[0].partition("-")[0] or folder, ""


def _warn(message: str, *details: object) -> None:
    import logging  # a warning is rare

    logging.getLogger("plaunch").warning(message, *details)
