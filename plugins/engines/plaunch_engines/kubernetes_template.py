"""The template of `--on=kubernetes`: parts of manifests that are merged into plaunch's own.

Mappings are merged; null removes a key, and `$patch: replace` replaces a whole mapping. Lists of
mappings are merged by `mountPath` or `name`, as `kubectl` does; other lists are replaced.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from plaunch.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from plaunch_engines.kubernetes_manifests import Manifest

POD = "PodTemplate"
_MERGE_KEYS = ("mountPath", "name")
_PATCH = "$patch"


def read_template(path: str) -> list[Manifest]:
    """Read a template.

    Raises:
        UsageError: it cannot be read, or is not a template; the message names the line.
    """
    yaml = load_yaml()
    try:
        with open(path, encoding="utf-8") as file:
            documents: list[Any] = list(_load_all(file.read()))
    except OSError as error:
        raise UsageError(f"--kubernetes-template: {error}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise UsageError(f"--kubernetes-template: {path}{line}: {error.problem}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        text = " ".join(str(error).split())
        raise UsageError(f"--kubernetes-template: {path}: {text}") from error
    for number, document in enumerate(documents):
        if document is not None and not isinstance(document, dict):
            raise UsageError(
                f"--kubernetes-template: {path}: document {number + 1} is {_kind_of(document)}, "
                "not a mapping with a kind"
            )
    return [document for document in documents if document is not None]


def apply_template(manifests: Sequence[Manifest], documents: Sequence[Manifest]) -> list[Manifest]:
    """Return the manifests with the documents of a template merged into them.

    Raises:
        UsageError: a document does not fit; the message names its path.
    """
    result = [copy.deepcopy(manifest) for manifest in manifests]
    pods = _pod_template(result[-1])
    known = {manifest["kind"]: manifest for manifest in result}
    kinds = sorted([*known, *([POD] if pods is not None else [])])
    for document in documents:
        kind = document.get("kind")
        if kind not in kinds:
            raise _error(
                "kind", f"{kind!r} is not a kind of this job's manifests; choose from {kinds}"
            )
        patch = {key: value for key, value in document.items() if key not in ("kind", "apiVersion")}
        if kind == POD and pods is not None:
            _refuse_other(POD, patch, {"metadata", "template"})
            pods.update(_merge(pods, patch.get("template") or {}, f"{POD}.template"))
            continue
        manifest = known[str(kind)]
        _check_same(manifest, document)
        manifest.update(_merge(manifest, patch, str(kind)))
    return result


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
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{key.value!r} occurs twice", key.start_mark
                    )
                seen.add(key.value)
            return super().construct_mapping(node, deep=deep)

    yield from yaml.load_all(text, Loader=Loader)


def _pod_template(job: Manifest) -> Manifest | None:
    """Return the pod template of a job; None for a TrainJob, which has none."""
    spec: Manifest = job["spec"]
    if "replicatedJobs" in spec:
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    return spec.get("template")


def _check_same(manifest: Manifest, document: Manifest) -> None:
    """Refuse another version of the object, or another name, which this command would not find."""
    kind = manifest["kind"]
    own = {"apiVersion": manifest["apiVersion"], **manifest["metadata"]}
    metadata = document.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise _error(f"{kind}.metadata", "is not a mapping")
    for path, key, value in (
        (f"{kind}.apiVersion", "apiVersion", document.get("apiVersion")),
        (f"{kind}.metadata.name", "name", metadata.get("name")),
        (f"{kind}.metadata.namespace", "namespace", metadata.get("namespace")),
    ):
        if value is not None and value != own.get(key):
            expected = own.get(key) or "set by --kubernetes-namespace"
            raise _error(path, f"is {value!r}, and this job's is {expected}; leave it out")


def _refuse_other(path: str, found: Manifest, known: set[str]) -> None:
    for key in sorted(set(found) - known):
        raise _error(f"{path}.{key}", f"is unknown; a {path} has {sorted(known)}")


def _merge(base: Any, patch: Any, path: str) -> Any:
    if isinstance(base, dict):
        return _merge_mappings(base, patch, path)
    if isinstance(base, list):
        if not isinstance(patch, list):
            raise _error(path, f"is a list, and {_kind_of(patch)} in the template")
        key = _merge_key([*base, *patch])
        return _merge_lists(base, patch, key, path) if key else copy.deepcopy(patch)
    if isinstance(patch, (dict, list)):
        raise _error(path, f"is {_kind_of(base)}, and {_kind_of(patch)} in the template")
    return patch


def _merge_mappings(base: Manifest, patch: Any, path: str) -> Manifest:
    if not isinstance(patch, dict):
        raise _error(path, f"is a mapping, and {_kind_of(patch)} in the template")
    if patch.get(_PATCH) not in (None, "replace"):
        raise _error(f"{path}.{_PATCH}", f"is {patch[_PATCH]!r}; it can only be replace")
    result = {} if patch.get(_PATCH) == "replace" else dict(base)
    for key, value in patch.items():
        if key == _PATCH:
            continue
        if value is None:
            result.pop(key, None)
        elif key in result and result[key] is not None:
            result[key] = _merge(result[key], value, f"{path}.{key}")
        else:
            result[key] = (
                _merge_mappings({}, value, f"{path}.{key}") if isinstance(value, dict) else value
            )
    return result


def _merge_lists(base: list[Any], patch: list[Any], key: str, path: str) -> list[Any]:
    result = list(base)
    places = {item[key]: number for number, item in enumerate(base)}
    for item in patch:
        place = places.get(item[key])
        if place is None:
            result.append(_merge_mappings({}, item, f"{path}[{item[key]}]"))
        else:
            result[place] = _merge(result[place], item, f"{path}[{item[key]}]")
    return result


def _merge_key(items: list[Any]) -> str:
    """Return the key that all items of a list have; empty if it is not such a list."""
    for key in _MERGE_KEYS:
        if items and all(isinstance(item, dict) and key in item for item in items):
            return key
    return ""


def _kind_of(value: object) -> str:
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list) else repr(value)


def _error(path: str, text: str) -> UsageError:
    return UsageError(f"--kubernetes-template: {path} {text}")
