"""The environment variables that agents get from the command."""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING

from plaunch.errors import UsageError
from plaunch.numbers import quote
from plaunch.process import JOBS_VARIABLE, LAUNCHER_VARIABLE

from plaunch_engines.options import ENGINE_VARIABLE, OPTIONS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

TOKEN_VARIABLE = "PLAUNCH_RDZV_TOKEN"  # noqa: S105 - the name of a variable
# Variables that agents get from here: those of plaunch, and of libraries that workers use.
_PASSED = (
    "CUDA_*", "GLOO_*", "LOGLEVEL", "MKL_*", "NCCL_*", "OMP_*", "PET_*", "PLAUNCH_*", "PYTHON*",
    "PYTORCH_*", "TORCH*", "UCX_*",
)  # fmt: skip
_NOT_PASSED = {
    *(option.variable for option in OPTIONS),
    *(JOBS_VARIABLE, LAUNCHER_VARIABLE, ENGINE_VARIABLE, "PYTHONHOME", "PYTHON_EXEC"),
    "PET_LOCAL_ADDR",  # of this machine
}
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def passed_environment(
    environ: Mapping[str, str],
    texts: Iterable[str],
    *,
    has_token: bool = True,
    usual: Iterable[str] = _PASSED,
    refused: Collection[str] = (),
) -> dict[str, str]:
    """Return the variables that agents get.

    Args:
        environ: this process's environment.
        texts: the values of `--pass-env`, each `NAME,...`, in which a final `*` stands for any
            characters and `NAME=VALUE`, with the rest of the text, sets another value.
        has_token: whether there is a new token if the environment has none.
        usual: the names that are always passed.
        refused: further names that are not passed.

    Raises:
        UsageError: a variable is requested that is not set, or that cannot be passed.
    """
    kept = {*_NOT_PASSED, *refused}
    available = {name: value for name, value in environ.items() if name not in kept}
    passed = {
        name: value
        for name, value in available.items()
        if any(_matches(name, pattern) for pattern in usual)
    }
    for text in texts:
        for word in _split(text):
            name, is_assignment, value = word.partition("=")
            _check_name(name, word, kept)
            if is_assignment:
                passed[name] = value
                continue
            found = {n: v for n, v in available.items() if _matches(n, name)}
            if not found:
                raise _unset(name)
            passed.update(found)
    if has_token:
        passed.setdefault(TOKEN_VARIABLE, secrets.token_hex(32))
    return passed


def _split(text: str) -> Iterable[str]:
    """Yield the words between commas; the value of an assignment has the rest of the text."""
    while text:
        word, _, rest = text.partition(",")
        if "=" in word:
            yield text
            return
        if word:
            yield word
        text = rest


def _check_name(name: str, word: str, kept: Collection[str]) -> None:
    """Refuse what is not a name, or is that of a variable that plaunch sets for agents."""
    pattern = name.removesuffix("*") if name == word else name
    if not NAME.fullmatch(pattern or "_") or not name:
        raise UsageError(
            f"--pass-env: {quote(name)} is not the name of a variable; write NAME, NAME=VALUE or "
            "NAME*, and commas between names"
        )
    if name in kept:
        raise UsageError(
            f"--pass-env: {name} cannot be passed: it belongs to this command, or plaunch sets it "
            "for each agent; leave it out"
        )


def _unset(pattern: str) -> UsageError:
    if pattern.endswith("*"):
        what = f"no variable that can be passed begins with {pattern[:-1]}"
        return UsageError(f"--pass-env={pattern}: {what}; set one, or leave this out")
    return UsageError(
        f"--pass-env={pattern}: {pattern} is not set here; set it, write --pass-env={pattern}="
        "VALUE, or leave this out"
    )


def _matches(name: str, pattern: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
