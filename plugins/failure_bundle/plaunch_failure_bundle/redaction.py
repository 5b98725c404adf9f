"""Secrets, which are taken out of everything that goes into a bundle.

A bundle is made to be given to others. The environment of the launcher is not in it. But a script
may print what it was given, and a command line may have it.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

WITHHELD = b"<withheld>"
LEAST = 6  # characters of a value; shorter ones are parts of other words

_NAME = re.compile(
    r"(?:^|[_.-])(?:token|password|passwd|passphrase|secret|credentials?|auth|authorization"
    r"|(?:api)?key)$",
    re.IGNORECASE,
)
_GIVEN = re.compile(r"([\w.-]+)=")
_WORD = re.compile(r"[^\s,;&\])}'\"]*")
_IN_ADDRESS = re.compile(rb"(://)[^/\s:@\"']{0,256}:[^/\s@\"']{1,256}@")


def is_secret(name: str) -> bool:
    """Whether a variable, an option or a setting of this name has a value that is one."""
    return _NAME.search(name) is not None


class Redaction:
    """Takes values out of texts, and passwords out of addresses.

    Args:
        values: the values.
    """

    def __init__(self, values: Iterable[str]) -> None:
        found = {value.strip() for value in values}
        written = {form for value in found if len(value) >= LEAST for form in _forms(value)}
        # One may be a part of another.
        self._values = sorted(written, key=len, reverse=True)

    @classmethod
    def of_launch(
        cls, environ: Mapping[str, str], words: Sequence[str], settings: Mapping[str, object]
    ) -> Redaction:
        """Find them by the names that they have.

        Args:
            environ: the variables of the launcher.
            words: of its command line.
            settings: of the launch, by name.
        """
        return cls(
            (
                *(value for name, value in environ.items() if is_secret(name)),
                *_in_words(words),
                *_in_settings(settings),
            )
        )

    def __call__(self, data: bytes) -> bytes:
        """The text without them."""
        for value in self._values:
            data = data.replace(value, WITHHELD)
        return _IN_ADDRESS.sub(rb"\1" + WITHHELD + b"@", data)


def _in_words(words: Sequence[str]) -> Iterator[str]:
    for word, following in zip(words, (*words[1:], ""), strict=False):
        if word.startswith("-") and is_secret(word):
            yield following
        yield from _in_text(word)


def _in_text(text: str) -> Iterator[str]:
    """Those of `--api-key=VALUE` and `--rdzv-conf=password=VALUE,timeout=3`."""
    for match in _GIVEN.finditer(text):
        if is_secret(match[1]):
            value = text[match.end() :]  # which may have a comma, or end with one
            yield from (value, value.partition(",")[0], _WORD.match(value)[0])  # type: ignore[index]


def _in_settings(value: object, name: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _in_settings(item, str(key))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _in_settings(item, name)
    elif isinstance(value, str):
        yield from (value,) if is_secret(name) else _in_text(value)


def _forms(value: str) -> Iterator[bytes]:
    """How a value may be written: as it is, in JSON, in Python, for a shell."""
    quoted = shlex.quote(value)
    texts = (value, json.dumps(value)[1:-1], repr(value)[1:-1], quoted.strip("'"))
    for text in texts:
        yield text.encode("utf-8", "surrogateescape")
