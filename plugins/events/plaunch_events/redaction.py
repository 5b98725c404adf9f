"""Removing secrets from failure bundles and other output that users share.

A failure bundle is made to be shared, and a status is copied into tickets. Neither contains the
environment of the launcher, but a script may print its secrets, and a command line may have some.

The names follow the lists of Sentry's scrubber and of detect-secrets, and the shapes those of
gitleaks. None is a dependency: Sentry and detect-secrets match parts of names, which would remove
the values of `--tokenizer` and `--author`, detect-secrets reads source files line by line, which is
too slow for logs, and gitleaks is a program in Go.
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

from plaunch_events.secret_shapes import SHAPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

WITHHELD = b"<withheld>"
MIN_LENGTH = 6  # characters of a value; shorter ones also occur within other words

# --- names ----------------------------------------------------------------------------------------

# `accessToken` is `access` and `Token`, `DBPassword` is `DB` and `Password`.
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[^A-Za-z0-9]+")
# Anywhere in a name, also as the end of a longer word: PGPASSWORD.
_STRONG = re.compile(
    r"(?:passwords?|passwd|passphrases?|passcodes?|secrets?|credentials?|authorization"
    r"|(?:access|account|api|auth|client|private|secret|service|signing|storage)keys?"
    r"|(?:access|api|auth|bearer|refresh)tokens?|connectionstrings?|keypem|auth(?:config|header))$"
)
# As the last word.
_LAST = re.compile(
    r"(?:.*token|auth|bearer|cookies?|creds?|dsn|jwt|key|pass|sshpass|pat|pwd|sig|signature)$"
)
# Several tokens are secrets in a variable such as HF_TOKENS, unless their number is meant.
_TOKENS = re.compile(
    r"(?!(?:.*_)?(?:ALL|AVG|BAD|BATCH|COMPLETION|CONTEXT|EXTRA|FORCED|GLOBAL|IMAGE|INPUT|LOCAL|MASK|MAX"
    r"|MEAN|MIN|N|NEW|NUM|NUMBER|OUTPUT|PAD|PER|PROMPT|SEEN|SPECIAL|STEP|STOP|SUPPRESS|TOTAL|TRAIN"
    r"|TRAINED|TRAINING|VALID|WARMUP)_TOKENS$)(?:[A-Z0-9]+_)+TOKENS$"
)
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
    if any(_STRONG.search(word) for word in (*words, *pairs)) or _TOKENS.match(name):
        return True
    while len(words) > 1 and _QUALIFIER.match(words[-1]):
        del words[-1]
    return _LAST.match(words[-1]) is not None


# Names that also have other meanings in texts.
_VAGUE = frozenset(["auth", "bearer", "cookie", "key", "pass", "pat", "sig", "signature"])


def _is_strong(name: str) -> bool:
    return _STRONG.search("".join(_HUMP.split(name)).lower()) is not None


# --- texts ----------------------------------------------------------------------------------------

# Every such name contains one of these words, so a fast search for them comes first.
_STEMS = b"auth bearer connection cookie cred dsn jwt key pass pat pwd secret sig token".split()
_QUOTE = rb"\\{0,3}[\"']"
# `NAME=`, `"NAME": `, and `("NAME", ` before a quoted value.
_REST_OF_NAME = (
    rb"[\w.-]{0,60}(?:(?:" + _QUOTE + rb")?[ \t]{0,3}[=:][ \t]{0,3}"
    rb"|" + _QUOTE + rb",[ \t]{0,3}(?=\\{0,3}[\"']))"
)
_VALUE = (
    rb"(?:(?P<quote>" + _QUOTE + rb")(?P<quoted>[^\n]{6,4096}?)(?P=quote)"
    rb"|(?:" + _QUOTE + rb")?(?:(?:basic|bearer|token)[ \t]+)?(?P<plain>[^\s\"'\\<>]{6,4096}))"
)
# The value is not consumed: `token_type=bearer&access_token=...` has another name in it.
_NAMED = {stem: re.compile(stem + _REST_OF_NAME + rb"(?=" + _VALUE + rb")") for stem in _STEMS}
_AFTER_OPTION = re.compile(
    rb"(?<![\w-])--([\w.-]{1,60})[ \t]+"
    rb"(?:(?P<quote>[\"'])(?P<quoted>[^\n]{6,4096}?)(?P=quote)|(?P<plain>[^\s\"']{6,4096}))"
)
_COOKIES = re.compile(rb"(\b(?:set-)?cookie:[ \t]*)[^\s\"'][^\n\"']{3,8191}", re.IGNORECASE)
_LETTERS = f"{string.ascii_letters}{string.digits}_.-".encode()  # of names
_NAME = re.compile(rb"[\w.-]*")
_END = re.compile(rb"[,;&)\]}].*", re.DOTALL)  # of a value without quotes
# Values in code or logs that are not secrets: token=next_token, token=tokens[0], token=50256
_CODE = re.compile(rb"[a-z_][\w.]*[\[(].*|[a-z_][a-z_.]*|[\d.,+-]+", re.IGNORECASE | re.DOTALL)

# Secrets that are recognized by their shape: how they begin, and the whole pattern.
_SHAPES = (
    *((shape.begin.encode(), re.compile(shape.pattern)) for shape in SHAPES),
    (b"eyJ", re.compile(rb"eyJ[\w-]{8,}\.eyJ[\w-]{8,}(?:\.[\w-]*)?")),
    (b"Q~", re.compile(rb"[\w.~]{3}\dQ~[\w.~-]{31,34}")),  # Azure
    (
        b"PRIVATE KEY-----",
        re.compile(
            rb"-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----(?:[^-]|-(?!----)){1,16384}"
            rb"(?:-----END [A-Z ]{0,20}PRIVATE KEY-----)?"
        ),
    ),
)
_SCHEME = re.compile(rb"\b(bearer[ \t]+)[\w.~+/=-]{8,}", re.IGNORECASE)
# Also `https://TOKEN@host`. A password may have a slash, unless a port is before it.
_IN_ADDRESS = re.compile(
    rb"(://)(?:[^/\s\"'<>]{1,1024}|[^/:@\s\"'<>]{0,256}:(?!\d{1,5}/)[^@\s\"'<>]{1,1024})@"
)


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
        if b"--" in data:
            data = _AFTER_OPTION.sub(_withheld_after_option, data)
        if b"ookie:" in data or b"OOKIE:" in data:
            data = _COOKIES.sub(rb"\1" + WITHHELD, data)
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


def _withheld_after_option(match: re.Match[bytes]) -> bytes:
    """Remove the value of `--password VALUE` in the text of a command."""
    kind = "plain" if match["plain"] else "quoted"
    name, value = match[1].decode(), match[kind]
    if not is_secret(name) or value.startswith((b"-", WITHHELD[:5])):
        return match[0]
    if kind == "plain" and not _is_strong(name) and _CODE.fullmatch(value):
        return match[0]  # "--token is required"
    begin, end = (at - match.start() for at in match.span(kind))
    return match[0][:begin] + WITHHELD + match[0][end:]


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
        is_strong = _is_strong(text)
        if not (is_given or (is_strong and (not is_assigned or _is_in_dsn(data, first, span)))):
            return None
    return span


_DSN = re.compile(rb"\w=[^\s,()\[\]{}]+[ \t;]+$")  # another setting before the name


def _is_in_dsn(data: bytes, first: int, span: tuple[int, int]) -> bool:
    """Whether a value is one of a connection string, as in `host=db password=word`, not in code."""
    after = data[span[1] : span[1] + 1]
    is_end = not after or after in b" \t\r\n;\"'"
    return is_end and _DSN.search(data, max(first - 128, 0), first) is not None


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
