"""`--print-completion`: a script with which a shell completes plaunch's command line.

The names of installed plugins are asked for when the user presses the key: the script runs this
module, which reads the metadata of what is installed and imports no plugin.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from plaunch.errors import PluginLoadError, UsageError

if TYPE_CHECKING:
    from plaunch.cli import Invocation, OptionTable

_DETAILS_END = " (default"  # the rest of an option's help is too long for a list of choices


def run_completion(invocation: Invocation) -> int:
    """Print the script for the shell that `--print-completion` names."""
    shell: str = invocation.options["print_completion"]
    invocation.write(completion_script(shell, invocation.table))
    return 0


def completion_script(shell: str, table: OptionTable) -> str:
    """The script for one shell.

    Raises:
        PluginLoadError: the library that makes it, shtab, is not installed.
        UsageError: the installed version of it does not know the shell.
    """
    try:
        import shtab  # an extra
    except ImportError as error:
        raise PluginLoadError(
            f"--print-completion={shell} needs the package shtab, which cannot be imported "
            f"({error}); pip install 'plaunch[completion]'"
        ) from error
    if shell not in shtab.SUPPORTED_SHELLS:
        raise UsageError(
            f"shtab {shtab.__version__} makes no completion for {shell!r}, only for "
            f"{', '.join(sorted(shtab.SUPPORTED_SHELLS))}; upgrade it: pip install -U shtab"
        )
    script: str = shtab.complete(_parser(shtab, shell, table), shell)
    if not script.endswith("\n"):
        script += "\n"
    if shell == "bash":
        return script + _bash_with_equals_signs(table)
    return _zsh_with_equals_signs(script, table) if shell == "zsh" else script


def _parser(shtab: object, shell: str, table: OptionTable) -> argparse.ArgumentParser:
    """A parser that shows shtab the options, and how to complete their values."""
    parser = argparse.ArgumentParser(prog="plaunch", allow_abbrev=False, add_help=False)
    for title, options in table.groups:
        group = parser.add_argument_group(title)
        for option in options:
            # What may do without a value never takes the next word for one.
            is_flag = option.read is None or option.bare is not None
            help_text = option.help.partition(_DETAILS_END)[0].replace("%", "%%")
            if is_flag:
                group.add_argument(*option.names, help=help_text, action="store_true")
                continue
            action = group.add_argument(
                *option.names,
                help=help_text,
                metavar=_metavar(option.metavar, shell),
                choices=option.choices or None,
            )
            complete = _completer(shtab, option.plugins, option.path, option.dest)
            if complete is not None:
                action.complete = complete  # type: ignore[attr-defined]
    for name, nargs, text in (
        ("training_script", None, "the script"),
        ("training_script_args", argparse.REMAINDER, "its arguments"),
    ):
        positional = parser.add_argument(name, nargs=nargs, help=text)
        positional.complete = shtab.FILE  # type: ignore[attr-defined]
    return parser


# bash hands over words in pieces, cut at "=" and ":". What shtab makes knows whole words, and
# values only as words of their own.
_BASH_WRAPPER = r"""
_plaunch() {
  local -a typed=() words=()
  local rest=$COMP_LINE word i at=0 cword=0
  for i in "${!COMP_WORDS[@]}"; do
    word=${COMP_WORDS[i]}
    if [[ -z $word ]]; then
      rest=${rest#[[:space:]]}
      typed+=("")
    elif [[ $i -gt 0 && $rest != [[:space:]]* ]]; then
      typed[${#typed[@]}-1]+=$word
    else
      rest=${rest#"${rest%%[![:space:]]*}"}
      typed+=("$word")
    fi
    rest=${rest#"$word"}
    [[ $i -eq $COMP_CWORD ]] && at=$((${#typed[@]} - 1))
  done

  local option="" value=${typed[at]} choices="" has_own=0
  for i in "${!typed[@]}"; do
    word=${typed[i]}
    if [[ $word == --*=* ]]; then
      option=${word%%=*}
      words+=("$option")
      # What does without a value takes no other word for one.
      case ${option//_/-} in
        BARE) [[ $i -eq $at ]] && words+=("${word#*=}") ;;
        *) words+=("${word#*=}") ;;
      esac
    else
      words+=("$word")
    fi
    [[ $i -eq $at ]] && cword=$((${#words[@]} - 1))
  done

  local joined=""
  if [[ $value == --*=* ]]; then
    joined=${value%%=*}=
    value=${value#*=}
  fi
  case ${joined//_/-} in
CASES
  esac
  if [[ $has_own -eq 1 ]]; then
    COMPREPLY=($(compgen -W "$choices" -- "$value"))
  else
    COMP_WORDS=("${words[@]}")
    COMP_CWORD=$cword
    _shtab_plaunch "$1" "$value" "${words[cword-1]}"
  fi

  # A reply stands for what follows the last of the characters at which words are cut.
  local known=""
  [[ $COMP_WORDBREAKS == *=* ]] || known=$joined
  COMPREPLY=("${COMPREPLY[@]/#/$known}")
  if [[ $value == *:* && $COMP_WORDBREAKS == *:* ]]; then
    COMPREPLY=("${COMPREPLY[@]#"${value%"${value##*:}"}"}")
  fi
}

complete -o bashdefault -F _plaunch plaunch
"""


def _bash_with_equals_signs(table: OptionTable) -> str:
    """The change to the function for bash that makes it complete after `--option=` too."""
    bare = [option for option in table if option.bare is not None]
    cases = [
        f'    {name}=) has_own=1 choices="{" ".join(option.choices)}" ;;'
        for option in bare
        for name in option.names
    ]
    names = "|".join(name for option in bare for name in option.names)
    return _BASH_WRAPPER.replace("BARE", names).replace("CASES", "\n".join(cases))


def _zsh_with_equals_signs(script: str, table: OptionTable) -> str:
    """The script for zsh, with options that take their value after `=` as well."""
    import re  # not for launches

    for option in table:
        if option.read is None:
            continue
        for name in option.names:
            # "=": in this word or in the next; "=-": in this word only, and "::": or not at all.
            mark = "=" if name.startswith("--") else "+"
            mark += "-" if option.bare is not None else ""
            value = f"::{option.metavar}:({' '.join(option.choices)})" if option.bare else ""
            script = re.sub(
                rf'^(  "{name})(\[.*)"$', rf'\g<1>{mark}\g<2>{value}"', script, flags=re.M
            )
            script = re.sub(rf"^(  \{{.*{name})(?=[,}}])", rf"\g<1>{mark}", script, flags=re.M)
    return script


def _metavar(metavar: str | None, shell: str) -> str | None:
    # zsh ends the word at a colon and takes the rest for a command; shtab does not mask it.
    return metavar.replace(":", r"\:") if metavar and shell == "zsh" else metavar


def _completer(shtab: object, plugins: str, path: str, dest: str) -> object:
    if dest == "plugins":
        plugins = "all"
    if plugins:
        return shtab.cmd(_names_command(plugins))  # type: ignore[attr-defined]
    if path:
        return shtab.DIRECTORY if path == "directory" else shtab.FILE  # type: ignore[attr-defined]
    return None


def _names_command(kind: str) -> str:
    import shlex  # not for launches

    # An interpreter that is gone must not spill an error over the user's command line.
    # By its path: -m would look for modules in the user's current folder, and run what it finds.
    # There is no room for a program with quotes of its own (tcsh), and -P came with Python 3.11.
    words = shlex.join([sys.executable, os.path.abspath(__file__)])
    return f"{words} {kind} 2>/dev/null"


if __name__ == "__main__":
    sys.path[:1] = []  # this folder, whose modules are not to be found first
    from plaunch.plugin import installed_plugins

    kind = "" if sys.argv[1] == "all" else sys.argv[1]
    sys.stdout.write("".join(f"{name}\n" for name in installed_plugins().names(kind)))
