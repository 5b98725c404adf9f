"""Removing secrets from failure bundles and other output that users share.

A failure bundle is made to be shared, and a status is copied into tickets. Neither contains the
environment of the launcher, but a script may print its secrets, and a command line may have some.

The names follow the lists of Sentry's scrubber and of detect-secrets. Neither is a dependency:
both match parts of names, which would remove the values of `--tokenizer` and `--author`, and
detect-secrets reads source files line by line, which is too slow for logs.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import shlex
import string
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

WITHHELD = b"<withheld>"
MIN_LENGTH = 6  # characters of a value; shorter ones also occur within other words

# --- names ----------------------------------------------------------------------------------------

# `accessToken` is `access` and `Token`, `DBPassword` is `DB` and `Password`.
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[^A-Za-z0-9]+")
# Anywhere in a name, also as the end of a longer word: PGPASSWORD.
_STRONG = re.compile(
    r"(?:password|passwd|passphrase|passcode|secrets?|credentials?|authorization"
    r"|(?:access|account|api|auth|client|private|secret|service|signing|storage)keys?"
    r"|(?:access|api|auth|bearer|refresh)tokens?)$"
)
# As the last word.
_LAST = re.compile(r"(?:.*token|auth|bearer|cookies?|jwt|key|pass|sshpass|pat|pwd)$")
# Words that may follow the last word, as in TOKEN_V2 and SECRET_KEY_BASE.
_QUALIFIER = re.compile(
    r"(?:\d+|v|b|base|value|raw|old|new|current|previous|prod|production|dev|staging|test)$"
)
# With such a last word, the value is not the secret itself: token_file, AWS_ACCESS_KEY_ID.
_ABOUT = re.compile(
    r"(?:file|filename|path|dir|folder|name|names|id|ids|type|length|len|size|count|limit|ttl"
    r"|timeout|expiry|expires|hash|algorithm|manager|arn|command|cmd|env|var)$"
)
_NO_SECRETS = frozenset(["pwd"])  # the working folder


@functools.lru_cache(4096)
def is_secret(name: str) -> bool:
    """Whether the value of a variable, option or setting of this name is a secret."""
    words = [word.rstrip("0123456789") or word for word in _HUMP.split(name.strip()) if word]
    words = [word.lower() for word in words]
    if not words or name.lower() in _NO_SECRETS or _ABOUT.match(words[-1]):
        return False
    pairs = map("".join, itertools.pairwise(words))
    if any(_STRONG.search(word) for word in (*words, *pairs)):
        return True
    while len(words) > 1 and _QUALIFIER.match(words[-1]):
        del words[-1]
    return _LAST.match(words[-1]) is not None


# Names that also have other meanings in texts.
_VAGUE = frozenset(["auth", "bearer", "cookie", "key", "pass", "pat"])


def _is_strong(name: str) -> bool:
    return _STRONG.search("".join(_HUMP.split(name)).lower()) is not None


# --- texts ----------------------------------------------------------------------------------------

# Every such name contains one of these words, so a fast search for them comes first.
_STEMS = b"auth bearer cookie cred jwt key pass pat pwd secret token".split()
_REST_OF_NAME = rb"[\w.-]{0,60}\\{0,3}[\"']?[ \t]{0,3}[=:][ \t]{0,3}"
_QUOTE = rb"\\{0,3}[\"']"
_VALUE = (
    rb"(?:(?P<quote>" + _QUOTE + rb")(?P<quoted>[^\n]{6,4096}?)(?P=quote)"
    rb"|(?:" + _QUOTE + rb")?(?:(?:basic|bearer|token)[ \t]+)?(?P<plain>[^\s\"'\\<>]{6,4096}))"
)
_NAMED = {stem: re.compile(stem + _REST_OF_NAME + _VALUE) for stem in _STEMS}
_LETTERS = f"{string.ascii_letters}{string.digits}_.-".encode()  # of names
_NAME = re.compile(rb"[\w.-]*")
_END = re.compile(rb"[,;&)\]}].*", re.DOTALL)  # of a value without quotes
# Values in code or logs that are not secrets: token=next_token, token=tokens[0], token=50256
_CODE = re.compile(rb"[a-z_][\w.]*[\[(].*|[a-z_][a-z_.]*|[\d.,+-]+", re.IGNORECASE | re.DOTALL)

# Secrets that are recognized by their shape: how they begin, and the whole pattern.
_SHAPES = tuple(
    (begin, re.compile(pattern))
    for begin, pattern in (
        (b"AKIA", rb"AKIA[0-9A-Z]{16}"),
        (b"ASIA", rb"ASIA[0-9A-Z]{16}"),
        (b"AIza", rb"AIza[\w-]{35}"),
        (b"eyJ", rb"eyJ[\w-]{8,}\.eyJ[\w-]{8,}(?:\.[\w-]*)?"),
        *((b"gh%c_" % kind, rb"gh%c_[A-Za-z0-9]{20,}" % kind) for kind in b"oprsu"),
        (b"github_pat_", rb"github_pat_\w{20,}"),
        (b"glpat-", rb"glpat-[\w-]{16,}"),
        (b"hf_", rb"hf_[A-Za-z0-9]{20,}"),
        (b"npm_", rb"npm_[A-Za-z0-9]{30,}"),
        (b"pypi-", rb"pypi-[\w-]{40,}"),
        (b"sk-", rb"sk-[\w-]{20,}"),
        (b"xox", rb"xox[abeoprs]-[\w-]{10,}"),
        (b"hooks.slack.com/", rb"hooks\.slack\.com/services/[\w/-]+"),
        (
            b"PRIVATE KEY-----",
            rb"-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----(?:[^-]|-(?!----)){1,16384}"
            rb"(?:-----END [A-Z ]{0,20}PRIVATE KEY-----)?",
        ),
    )
)
_SCHEME = re.compile(rb"\b(bearer[ \t]+)[\w.~+/=-]{8,}", re.IGNORECASE)
_IN_ADDRESS = re.compile(rb"(://)[^/\s\"'<>]{1,1024}@")  # also `https://TOKEN@host`


class Redaction:
    """Removes secrets from texts: known values, and values with a suspicious name or shape.

    Args:
        values: the known values.
    """

    def __init__(self, values: Iterable[str]) -> None:
        found = {value.strip() for value in values}
        written = {form for value in found if len(value) >= MIN_LENGTH for form in _forms(value)}
        # Longest first: a value may contain another one.
        self._values = sorted(written, key=len, reverse=True)

    @classmethod
    def of_launch(
        cls, environ: Mapping[str, str], words: Sequence[str], settings: Mapping[str, object]
    ) -> Redaction:
        """Create one for the values that have names of secrets in a launch.

        Args:
            environ: the environment of the launcher.
            words: the words of its command line.
            settings: the settings of the launch, by name.
        """
        return cls(
            (
                *(value for name, value in environ.items() if is_secret(name)),
                *_in_words(words),
                *_in_settings(settings),
            )
        )

    def __call__(self, data: bytes) -> bytes:
        """Return the text without secrets."""
        for value in self._values:
            data = data.replace(value, WITHHELD)
        if b"://" in data:
            data = _IN_ADDRESS.sub(rb"\1" + WITHHELD + b"@", data)
        data = _without_named(data)
        if b"earer" in data or b"EARER" in data:
            data = _SCHEME.sub(rb"\1" + WITHHELD, data)
        for begin, pattern in _SHAPES:
            if begin in data:
                data = pattern.sub(_withheld_at_start_of_word, data)
        return data

    def words(self, words: Iterable[str]) -> list[str]:
        """Return the words of a command line without secrets."""
        return [
            self(word.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")
            for word in words
        ]


def _withheld_at_start_of_word(match: re.Match[bytes]) -> bytes:
    # A look-behind in the pattern would disable the fast search for its first letters.
    before = match.string[max(match.start() - 1, 0) : match.start()]
    return match[0] if before.isalnum() or before == b"_" else WITHHELD


def redact_command(words: Sequence[str]) -> list[str]:
    """Return the words of a command line without the secrets in them."""
    return Redaction.of_launch({}, words, {}).words(words)


def _without_named(data: bytes) -> bytes:
    """Remove named values from a text: `DB_PASS=...`, `"token": "..."`, `?token=...`."""
    lower = data.lower()
    spans = sorted(
        span
        for stem, pattern in _NAMED.items()
        if stem in lower
        for match in pattern.finditer(lower)
        if (span := _secret_span(data, match)) is not None
    )
    pieces, at = [], 0
    for begin, end in spans:
        if begin >= at:  # several stems may have found it
            pieces += [data[at:begin], WITHHELD]
            at = end
    return b"".join((*pieces, data[at:]))


def _secret_span(data: bytes, match: re.Match[bytes]) -> tuple[int, int] | None:
    """The span of a named value in `data`; None if it is not a secret."""
    is_quoted = match["quote"] is not None
    stem, (begin, end) = match.start(), match.span("quoted" if is_quoted else "plain")
    low = max(stem - 128, 0)
    first = low + len(data[low:stem].rstrip(_LETTERS))
    found = _NAME.match(data, first)
    name = b"" if found is None else found[0]
    text = name.decode("latin-1")
    if not is_secret(text):
        return None
    value = data[begin:end]
    if not is_quoted:
        value = _END.sub(b"", value)
    if len(value) < MIN_LENGTH or WITHHELD.startswith(value[:5]):
        return None
    span = begin, begin + len(value)
    if data[max(first - 1, 0) : first] in (b"?", b"&"):
        return span
    if text.lower().strip("-") in _VAGUE:
        return None
    if not is_quoted and _CODE.fullmatch(value):
        is_assigned = b"=" in data[first + len(name) : begin]
        is_given = is_assigned and (text.isupper() or text.startswith("-"))
        if not (is_given or (_is_strong(text) and not is_assigned)):
            return None
    return span


def _in_words(words: Sequence[str]) -> Iterator[str]:
    for word, following in zip(words, (*words[1:], ""), strict=False):
        if word.startswith("-") and "=" not in word and is_secret(word):
            yield following
        yield from _in_text(word)


_GIVEN = re.compile(r"([\w.-]+)=")
_WORD = re.compile(r"[^\s,;&\])}'\"]*")


def _in_text(text: str) -> Iterator[str]:
    """The secrets in `--api-key=VALUE` and `--rdzv-conf=password=VALUE,timeout=3`."""
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
    """The forms in which a value may be written: plain, in JSON, in Python, for a shell."""
    quoted = shlex.quote(value)
    texts = (value, json.dumps(value)[1:-1], repr(value)[1:-1], quoted.strip("'"))
    for text in texts:
        yield text.encode("utf-8", "surrogateescape")
