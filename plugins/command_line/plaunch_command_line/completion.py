"""`--print-completion`: a script with which a shell completes plaunch's command line.

For the names of plugins, the script runs this module when the user presses the key. It reads the
metadata of installed distributions and imports no plugin.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from plaunch.errors import PluginLoadError, UsageError

if TYPE_CHECKING:
    from plaunch.cli import Invocation, OptionTable

_HELP_END = " (default"  # the rest of an option's help is too long for a list of choices


def run_completion(invocation: Invocation) -> int:
    """Print the script for the shell that `--print-completion` names."""
    shell: str = invocation.options["print_completion"]
    invocation.write(completion_script(shell, invocation.table))
    return 0


def completion_script(shell: str, table: OptionTable) -> str:
    """The script for one shell.

    Raises:
        PluginLoadError: the library shtab, which generates it, is not installed.
        UsageError: the installed version of shtab does not support the shell.
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
    """A parser with all options, from which shtab generates the script."""
    parser = argparse.ArgumentParser(prog="plaunch", allow_abbrev=False, add_help=False)
    for title, options in table.groups:
        group = parser.add_argument_group(title)
        for option in options:
            # The next word is never the value of an option whose value may be omitted.
            is_flag = option.read is None or option.bare is not None
            help_text = option.help.partition(_HELP_END)[0].replace("%", "%%")
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


# bash passes words split at "=" and ":". shtab's function expects whole words, with values as
# separate words.
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
      # The next word is never the value of these options.
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

  # A reply replaces only the text after the last character at which bash splits words.
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
    """A wrapper of shtab's bash function that also completes after `--option=`."""
    bare = [option for option in table if option.bare is not None]
    cases = [
        f'    {name}=) has_own=1 choices="{" ".join(option.choices)}" ;;'
        for option in bare
        for name in option.names
    ]
    names = "|".join(name for option in bare for name in option.names)
    return _BASH_WRAPPER.replace("BARE", names).replace("CASES", "\n".join(cases))


def _zsh_with_equals_signs(script: str, table: OptionTable) -> str:
    """The zsh script, changed so that values are also completed after `=`."""
    import re  # not in launches

    for option in table:
        if option.read is None:
            continue
        for name in option.names:
            # "=": value in this word or the next; "=-": in this word only; "::": optional.
            mark = "=" if name.startswith("--") else "+"
            mark += "-" if option.bare is not None else ""
            value = f"::{option.metavar}:({' '.join(option.choices)})" if option.bare else ""
            script = re.sub(
                rf'^(  "{name})(\[.*)"$', rf'\g<1>{mark}\g<2>{value}"', script, flags=re.M
            )
            script = re.sub(rf"^(  \{{.*{name})(?=[,}}])", rf"\g<1>{mark}", script, flags=re.M)
    return script


def _metavar(metavar: str | None, shell: str) -> str | None:
    # zsh ends the word at a colon and runs the rest as a command; shtab does not escape it.
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
    import shlex  # not in launches

    # stderr is discarded, so that no error appears in the user's command line.
    # By path, as -m would run modules of the user's current folder, and -P needs Python 3.11.
    # Not by -c, as quotes cannot be nested in tcsh.
    words = shlex.join([sys.executable, os.path.abspath(__file__)])
    return f"{words} {kind} 2>/dev/null"


if __name__ == "__main__":
    sys.path[:1] = []  # this folder, whose modules could shadow others
    from plaunch.plugin import installed_plugins

    kind = "" if sys.argv[1] == "all" else sys.argv[1]
    sys.stdout.write("".join(f"{name}\n" for name in installed_plugins().names(kind)))
