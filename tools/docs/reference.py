"""Generates docs/command-line.md and docs/hooks.md from the code.

`python tools/docs/reference.py` writes them; a test compares them with the code.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING

from plaunch.cli.options import GROUPS
from plaunch.cli.parser import installed_table
from plaunch.plugin import KINDS, hookspecs
from plaunch.plugin.hooks import NOTIFICATION_HOOKS
from plaunch.plugin.options import AUTOLOAD_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from plaunch.cli.parser import OptionTable
    from plaunch.options import Option

COMMAND = "python tools/docs/reference.py"
DOCS = Path(__file__).parents[2] / "docs"

_COMMAND_LINE = f"""\
# Command line

    plaunch [options] script [arguments of the script]

The script is the first word that is neither an option nor a value of an option, or the first word
after `--`. All words after it belong to the script. If one of them is an option that only a
launcher has, such as `--nproc-per-node`, plaunch prints a warning; write `--` before the script if
you mean it for the script. `-` in the place of the script reads it from stdin, once for all
workers. `python -m plaunch` is the same as `plaunch`.

Write options with dashes or with underscores. They cannot be abbreviated. Most options can also be
set by a variable `PET_...`; the command line has priority. For an option without a value, set the
variable to 1 or true to turn it on, or to 0 or false to turn it off. plaunch warns if a variable
`PET_...` belongs to no option and has almost the name of one that does. `--help` lists all options,
`--version` prints the version, and `--dry-run` shows the source of each value.
[Exit codes and errors](errors.md) lists how a launch can end.

`{COMMAND}` generates this page from the code.
"""
_SETTINGS_FILE = """\
## Settings file

plaunch reads options from a settings file: `plaunch.toml` in the working folder, else the table
`[tool.plaunch]` of `pyproject.toml` there. `--config` (`PET_CONFIG`) names another file, and
`--config=` reads none. The first line of a launch names the file.

```toml title="plaunch.toml"
nproc-per-node = "gpu"
max-restarts = 3
tee = "3"
log-dir = "logs"

[rdzv-conf]
join_timeout = 120

[status]
metrics-port = 9400
```

A key is the name of an option, with dashes or underscores. Options of a plugin may be in a table
with the name of the plugin. In order of priority, a value comes from the command line, a variable,
the file, the scheduler, or the default; `--dry-run` shows which. An unknown key is an error that
suggests the closest option. The file cannot contain options that run a command instead of a launch,
such as `--doctor`. Python 3.10 needs `pip install 'plaunch[toml]'`.
"""
_HOOKS = f"""\
# Hooks

Every hook with its exact arguments. [Plugins](plugins.md#hooks) describes how plaunch calls
implementations, and [Writing plugins](writing-plugins.md) has examples. The types of arguments and
results are in the [Python API](api.md).

`{COMMAND}` generates this page from `plaunch.plugin.hookspecs`.
"""
_OFFERING = frozenset(kind.hook for kind in KINDS)
# In help texts: options, variables, and template placeholders.
_WORDS_OF_CODE = re.compile(
    r"(?<!\S)--[a-z-]+(?:=\w+)?|\b[A-Z]+_[A-Z_]+\b|\[?(?:\$\{\w+\})+(?:\]:)?"
)
_PARTS = ("Called", "Parameters", "Result")


def command_line() -> str:
    """Return the page of all options."""
    parts = [_COMMAND_LINE]
    for title, options in options_of_plaunch().groups:
        is_plugins = title not in dict(GROUPS)
        heading = f"Plugin {title}" if is_plugins else f"{title[0].upper()}{title[1:]}"
        parts.append(f"## {heading}\n")
        parts.extend(_option(option) for option in options)
    parts.append(_SETTINGS_FILE)
    return "\n".join(parts)


def options_of_plaunch() -> OptionTable:
    """Return the options of the core and of plaunch's own plugins."""
    return installed_table((), {AUTOLOAD_VARIABLE: "1"})


def spellings(option: Option) -> list[str]:
    """Return all spellings of an option, the main one first."""
    plain = option.names[-1]
    return list(dict.fromkeys([plain, "--" + plain[2:].replace("-", "_"), *option.names[:-1]]))


def _option(option: Option) -> str:
    facts = [("written", ", ".join(f"`{name}`" for name in spellings(option)))]
    if option.read is not None:
        facts.append(("value", _code(option.metavar or "TEXT")))
    if option.choices:
        facts.append(("one of", ", ".join(map(_code, option.choices))))
    if option.plugins:
        (kind,) = (kind for kind in KINDS if kind.name == option.plugins)
        facts.append(("names", f"those of [plugins](plugins.md#kinds) of the kind `{kind.name}`"))
    if option.bare is not None:
        facts.append(("without a value", _code(option.bare)))
    if option.is_repeated:
        facts.append(("several times", "its values add up"))
    facts.append(("default", _default(option)))
    if option.variable:
        facts.append(("variable", _code(option.variable)))
    rows = "\n".join(f"| {name} | {value} |" for name, value in facts)
    text = _WORDS_OF_CODE.sub(r"`\g<0>`", option.help[0].upper() + option.help[1:])
    return f"### {_code(option.names[-1])}\n\n{text}.\n\n| | |\n|---|---|\n{rows}\n"


def _default(option: Option) -> str:
    if option.read is None:
        return "on" if option.default else "off"
    if option.default in (None, "", ()):
        return "not given"
    return _code(str(option.default))


def _code(text: str) -> str:
    return f"`{text}`"


def hooks() -> str:
    """Return the page of all hooks."""
    _, _, rules = (inspect.getdoc(hookspecs) or "").partition("\n\n")
    parts = [_HOOKS, f"{rules}\n"]
    sorts: dict[str, list[str]] = {
        "Offer hooks": [],
        "Contribution hooks": [],
        "Notification hooks": [],
    }
    for name, function in specifications():
        title = "Contribution hooks"
        if name in _OFFERING:
            title = "Offer hooks"
        elif name in NOTIFICATION_HOOKS:
            title = "Notification hooks"
        sorts[title].append(_hook(name, function))
    for title, found in sorts.items():
        parts += [f"## {title}\n", *found]
    return "\n".join(parts)


def specifications() -> Iterator[tuple[str, Callable[..., object]]]:
    """Return the hooks by name, in the order of their specifications."""
    for name, found in vars(hookspecs).items():
        if name.startswith("plaunch_"):
            yield name, found


def _hook(name: str, function: Callable[..., object]) -> str:
    purpose, parts = _sections(inspect.getdoc(function) or "")
    rows = "\n".join(f"| {part.lower()} | {parts[part]} |" for part in _PARTS if part in parts)
    signature = inspect.signature(function)
    return (
        f"### `{name}`\n\n```python\n{_declaration(name, signature)}\n```\n\n{purpose}\n\n"
        f"| | |\n|---|---|\n{rows}\n"
    )


def _declaration(name: str, signature: inspect.Signature) -> str:
    """Return the declaration of a hook; annotations are strings."""
    arguments = [f"{p.name}: {p.annotation}" for p in signature.parameters.values()]
    line = f"def {name}({', '.join(arguments)}) -> {signature.return_annotation}"
    if len(line) <= 88:
        return line
    body = "".join(f"    {argument},\n" for argument in arguments)
    return f"def {name}(\n{body}) -> {signature.return_annotation}"


def _sections(docstring: str) -> tuple[str, dict[str, str]]:
    """Return the purpose of a hook, and the standard parts of its docstring."""
    purpose, _, rest = docstring.partition("\n\n")
    pieces = re.split(rf"^({'|'.join(_PARTS)}): ", rest, flags=re.MULTILINE)
    texts = [" ".join(piece.split()) for piece in pieces]
    return " ".join(purpose.split()), dict(zip(texts[1::2], texts[2::2], strict=True))


PAGES: dict[str, Callable[[], str]] = {"command-line.md": command_line, "hooks.md": hooks}

if __name__ == "__main__":
    for page, text in PAGES.items():
        (DOCS / page).write_text(text(), encoding="utf-8")
