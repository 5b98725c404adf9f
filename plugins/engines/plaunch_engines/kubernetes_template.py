"""The template of `--on=kubernetes`: parts of manifests that are merged into plaunch's own.

Mappings are merged; null removes a key, and `$patch: replace` replaces a whole mapping. Lists of
mappings are merged by `mountPath` or `name`, as `kubectl` does; other lists are replaced.
"""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

from plaunch.errors import UsageError

from plaunch_engines.kubernetes_manifests import pod_template

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from plaunch_engines.kubernetes_manifests import Manifest

POD = "PodTemplate"
_MERGE_KEYS = ("mountPath", "name")
_PATCH = "$patch"


class Template:
    """The parts of manifests in a file.

    Args:
        path: of the file.

    Raises:
        UsageError: it cannot be read, or is not a template; the message names the line.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        yaml = load_yaml()
        try:
            with open(path, encoding="utf-8") as file:
                documents: list[Any] = list(_load_all(file.read()))
        except OSError as error:
            raise self._error(str(error.strerror or error)) from error
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            place = f", line {mark.line + 1}" if mark else ""
            raise self._error(str(error.problem), place) from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise self._error(" ".join(str(error).split())) from error
        self._documents: list[Manifest] = []
        for number, document in enumerate(documents, 1):
            if document is None:
                continue
            if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
                raise self._error(f"document {number} has no kind")
            try:
                json.dumps(document, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise self._error(
                    f"document {number} cannot be written as JSON, in which it is sent: {error}; "
                    "quote texts that look like dates"
                ) from error
            self._documents.append(document)

    def apply(self, manifests: Sequence[Manifest]) -> list[Manifest]:
        """Return the manifests with the documents merged into them.

        Raises:
            UsageError: a document does not fit; the message names its path.
        """
        result = [copy.deepcopy(manifest) for manifest in manifests]
        has_pods = pod_template(result[-1]) is not None
        kinds = sorted([*(each["kind"] for each in result), *([POD] if has_pods else [])])
        seen = set()
        for document in self._documents:
            kind = document["kind"]
            if kind not in kinds:
                raise self._error(f"this job has no {kind!r}; choose from {', '.join(kinds)}")
            if kind in seen:
                raise self._error(f"there are two documents of the kind {kind}; write one")
            seen.add(kind)
            try:
                if kind == POD:
                    _merge_pods(result[-1], document)
                else:
                    place = next(n for n, each in enumerate(result) if each["kind"] == kind)
                    result[place] = _merge_object(result[place], document)
            except _MismatchError as error:
                raise self._error(str(error)) from error
        return result

    def _error(self, text: str, place: str = "") -> UsageError:
        return UsageError(f"--kubernetes-template: {self._path}{place}: {text}")


class _MismatchError(Exception):
    """A part of a document does not fit; the message names its path."""


def load_yaml() -> Any:
    """Import PyYAML.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import yaml
    except ImportError as error:
        raise UsageError(
            f"--on=kubernetes needs PyYAML ({error}); pip install 'plaunch[kubernetes]'"
        ) from error
    return yaml


def _load_all(text: str) -> Iterator[Any]:
    yaml = load_yaml()

    class Loader(yaml.SafeLoader):  # type: ignore[misc,name-defined]
        """Refuses keys that occur twice, of which the last would win silently."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set()
            for key, _ in node.value:
                problem = "" if isinstance(key, yaml.ScalarNode) else "a key is not a text"
                if not problem and key.value in seen:
                    problem = f"{key.value!r} occurs twice"
                if problem:
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen.add(key.value)
            return super().construct_mapping(node, deep=deep)

    yield from yaml.load_all(text, Loader=Loader)


def _merge_pods(job: Manifest, document: Manifest) -> None:
    """Merge a document into the pod template of a job."""
    unknown = sorted(set(document) - {"apiVersion", "kind", "metadata", "template"})
    if unknown:
        raise _MismatchError(f"{POD}.{unknown[0]} is unknown; changes belong to {POD}.template")
    pods = pod_template(job)
    if pods is None:
        raise _MismatchError(f"{POD}: the document before has removed it")
    merged = _merge(pods, document.get("template") or {}, f"{POD}.template")
    pods.clear()
    pods.update(merged)


def _merge_object(manifest: Manifest, document: Manifest) -> Manifest:
    """Return an object with a document merged into it, which must stay the same object."""
    merged = _merge_mappings(manifest, document, manifest["kind"])
    before, after = _identity(manifest), _identity(merged)
    for path, value in before.items():
        if after[path] != value:
            option = "--kubernetes-namespace" if path.endswith("namespace") else "this command"
            raise _MismatchError(
                f"{manifest['kind']}.{path} is {after[path]!r}, and {option} sets {value!r}; leave "
                "it out"
            )
    return merged


def _identity(manifest: Manifest) -> Mapping[str, object]:
    metadata = manifest.get("metadata") or {}
    return {
        "apiVersion": manifest.get("apiVersion"),
        "metadata.name": metadata.get("name"),
        "metadata.namespace": metadata.get("namespace"),
    }


def _merge(base: Any, patch: Any, path: str) -> Any:
    if isinstance(base, dict):
        return _merge_mappings(base, patch, path)
    if isinstance(base, list):
        return _merge_lists(base, patch, path)
    if isinstance(patch, (dict, list)):
        raise _MismatchError(f"{path} is {_kind_of(patch)}, and has to be like {base!r}")
    return patch


def _merge_mappings(base: Manifest, patch: Any, path: str) -> Manifest:
    if not isinstance(patch, dict):
        raise _MismatchError(f"{path} is {_kind_of(patch)}, and has to be a mapping")
    if patch.get(_PATCH) not in (None, "replace"):
        raise _MismatchError(f"{path}.{_PATCH} is {patch[_PATCH]!r}, and can only be replace")
    result = {} if patch.get(_PATCH) == "replace" else dict(base)
    for key, value in patch.items():
        if key == _PATCH:
            continue
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict) and result.get(key) is None:
            result[key] = _merge_mappings({}, value, f"{path}.{key}")
        elif result.get(key) is None:
            result[key] = value
        else:
            result[key] = _merge(result[key], value, f"{path}.{key}")
    return result


def _merge_lists(base: list[Any], patch: Any, path: str) -> list[Any]:
    if not isinstance(patch, list):
        raise _MismatchError(f"{path} is {_kind_of(patch)}, and has to be a list")
    key = _common_key([*base, *patch])
    if not key:
        if _common_key(base):
            raise _MismatchError(f"{path} has an item without a {_common_key(base)}")
        return patch
    result = list(base)
    places = {item[key]: number for number, item in enumerate(base)}
    for item in patch:
        place = places.get(item[key])
        before = {} if place is None else result[place]
        merged = _merge_mappings(before, item, f"{path}[{item[key]}]")
        if place is None:
            result.append(merged)
        else:
            result[place] = merged
    return result


def _common_key(items: list[Any]) -> str:
    """Return the key by which items are merged: all of them have it, with a text."""
    for key in _MERGE_KEYS:
        if items and all(isinstance(each, dict) and type(each.get(key)) is str for each in items):
            return key
    return ""


def _kind_of(value: object) -> str:
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list) else repr(value)
