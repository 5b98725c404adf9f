"""Where a command line is cut, what its options mean, and what the environment adds."""

from __future__ import annotations

import subprocess
import sys

import pytest
from plaunch.cli.parser import build_parser, parse
from plaunch.errors import UsageError


def command(args):
    return args.training_script, args.training_script_args


@pytest.mark.parametrize(
    ("argv", "script", "rest"),
    [
        (["train.py"], "train.py", []),
        (["train.py", "--redirects", "3"], "train.py", ["--redirects", "3"]),
        (["train.py", "--r=16", "--mo", "0.9", "--log", "x"], "train.py", None),
        (["--nproc-per-node", "2", "train.py", "--", "-x"], "train.py", ["--", "-x"]),
        (["--nproc-per-node=2", "--", "-odd-.py", "--", "a"], "-odd-.py", ["--", "a"]),
        (["--standalone", "train.py", "--help"], "train.py", ["--help"]),
        (["-m", "pkg.train", "--version"], "pkg.train", ["--version"]),
        (["-r", "3", "-t1", "train.py", "-p"], "train.py", ["-p"]),
        (["-p", "no:x", "-pother", "train.py"], "train.py", []),
        (["--role", "-", "train.py"], "train.py", []),
        (["-"], "-", []),
        ([], None, []),
    ],
)
def test_options_end_at_the_script(argv, script, rest):
    expected = argv[1:] if rest is None else rest
    assert command(parse(argv, {})) == (script, expected)


def test_both_spellings_and_joined_values_mean_the_same():
    for argv in (
        ["--nproc-per-node", "2", "--max-restarts", "3"],
        ["--nproc_per_node", "2", "--max_restarts", "3"],
        ["--nproc_per_node=2", "--max-restarts=3"],
    ):
        args = parse([*argv, "x.py"], {})
        assert (args.nproc_per_node, args.max_restarts) == ("2", 3)


def test_a_value_may_begin_with_a_dash_and_keep_its_underscores():
    args = parse(["--role", "-my_role", "--rdzv-conf", "join_timeout=5", "x.py"], {})
    assert args.role == "-my_role"
    assert args.rdzv_conf == "join_timeout=5"


def test_defaults_are_torchruns():
    args = parse(["x.py"], {})
    assert args.nnodes == "1:1"
    assert args.nproc_per_node == "1"
    assert args.rdzv_backend == "static"
    assert args.max_restarts == 0
    assert args.monitor_interval == 0.1
    assert args.role == "default"
    assert args.redirects == args.tee == "0"
    assert args.signals_to_handle == "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    assert args.shutdown_timeout is None
    assert not args.standalone


def test_variables_give_defaults_and_options_win():
    environ = {"PET_MAX_RESTARTS": "3", "PET_NNODES": "2:4", "PET_STANDALONE": "1"}
    args = parse(["--nnodes", "1", "x.py"], environ)
    assert (args.max_restarts, args.nnodes, args.standalone) == (3, "1", True)


@pytest.mark.parametrize(
    ("text", "expected"), [("0", False), ("1", True), ("true", True), ("False", False)]
)
def test_boolean_variables(text, expected):
    assert parse(["x.py"], {"PET_NO_PYTHON": text}).no_python is expected


def test_every_option_has_its_variable():
    """The name of the variable is torchrun's: PET_ and the option in capitals."""
    for action in build_parser({})._actions:
        name = action.option_strings[-1]
        if name in ("--help", "-p", "--list-plugins", "--version"):
            continue
        variable = "PET_" + name[2:].replace("-", "_").upper()
        args = parse(["x.py"], {variable: "1"})
        assert getattr(args, action.dest) != action.default or action.default == "1", name


@pytest.mark.parametrize(
    ("argv", "environ", "message"),
    [
        (["--nproc", "2", "x.py"], {}, "no option --nproc; did you mean --nproc-per-node"),
        (["--rdzv-backnd=x", "x.py"], {}, "did you mean --rdzv-backend"),
        (["-x", "x.py"], {}, "there is no option -x"),
        (["--zzzz"], {}, r"there is no option --zzzz \("),
        (["--max-restarts", "two", "x.py"], {}, "--max-restarts: 'two' is not a whole number"),
        (["--monitor-interval", "x", "x.py"], {}, "'x' is not a number"),
        (["--master-port", "65536", "x.py"], {}, "'65536' is not a port number"),
        (["--max-restarts"], {}, "expected one argument"),
        (["x.py"], {"PET_MAX_RESTARTS": "two"}, "variable PET_MAX_RESTARTS: 'two'"),
        (["x.py"], {"PET_STANDALONE": "maybe"}, "variable PET_STANDALONE is 'maybe'; write 0, 1"),
    ],
)
def test_mistakes_are_named_on_one_line(argv, environ, message):
    with pytest.raises(UsageError, match=message) as caught:
        parse(argv, environ)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"), [("a,b", ["a", "b"]), ("a,,b", ["a,b"]), ("", []), ("x,,,y", ["x,", "y"])]
)
def test_duplicate_filters_escape_commas_by_doubling(text, expected):
    args = parse([f"--duplicate-stdout-filters={text}", "x.py"], {})
    assert args.duplicate_stdout_filters == expected


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["--nproc", "x.py"], []])
def test_help_version_and_mistakes_need_no_plugins(argv):
    """Neither pluggy nor importlib_metadata nor torch is imported on the way there."""
    code = (
        "import sys\n"
        "from plaunch.cli import main\n"
        f"code = main({argv!r})\n"
        "heavy = {'pluggy', 'importlib_metadata', 'importlib.metadata', 'torch', 'subprocess'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)), 'CODE', code)\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    expected = 0 if argv and argv[0] in ("--help", "--version") else 2
    assert f"HEAVY [] CODE {expected}" in shown.stdout
