"""Where a command line is cut, what its options mean, and what the environment adds."""

from __future__ import annotations

import pytest
from plaunch.cli.options import OPTIONS
from plaunch.cli.parser import _plugin_words, parse
from plaunch.errors import UsageError

from helpers.programs import run_python


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


@pytest.mark.parametrize(
    "words",
    [["-p", "no:hang"], ["-pno:hang"], ["--plugins=no:hang"], ["--plugins", "no:hang"]],
    ids=" ".join,
)
def test_a_plugin_that_is_left_out_has_no_options(words):
    assert _plugin_words([*words, "x.py"]) == ["no:hang"]  # before its options are known
    assert parse(["--exception-timeout=5", "x.py"], {}).exception_timeout == 5
    with pytest.raises(UsageError, match="there is no option --exception-timeout"):
        parse([*words, "--exception-timeout=5", "x.py"], {})


def test_a_value_may_begin_with_a_dash_and_keep_its_underscores():
    args = parse(["--role", "-my_role", "--rdzv-conf", "join_timeout=5", "x.py"], {})
    assert args.role == "-my_role"
    assert args.rdzv_conf == "join_timeout=5"


def test_defaults_are_torchruns():
    args = parse(["x.py"], {})
    assert (args.nnodes, args.nproc_per_node, args.rdzv_backend) == ("1:1", "1", "static")
    assert (args.max_restarts, args.monitor_interval, args.role) == (0, 0.1, "default")
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


def a_value_of(option):
    """A text that is no default."""
    if option.choices:
        return next(choice for choice in option.choices if choice != option.default)
    return "7-9" if option.dest == "port_range" else "7" if option.read is not None else "1"


# Of the settings file, its own test tells.
WITH_VARIABLE = [o for o in OPTIONS if o.has_variable and o.dest != "config"]


@pytest.mark.parametrize("option", WITH_VARIABLE, ids=lambda option: option.dest)
def test_every_option_has_its_variable_and_both_spellings(option):
    """The name of the variable is torchrun's: PET_ and the option in capitals."""
    name, text = option.names[-1], a_value_of(option)
    assert option.variable == "PET_" + name[2:].replace("-", "_").upper()
    from_variable = parse(["x.py"], {option.variable: text})
    value = getattr(from_variable, option.dest)
    assert value != getattr(parse(["x.py"], {}), option.dest)
    assert from_variable.sources[option.dest] == option.variable
    for spelling in (name, "--" + name[2:].replace("-", "_")):
        words = [spelling] if option.read is None else [f"{spelling}={text}"]
        args = parse([*words, "x.py"], {option.variable: text} if option.read is not None else {})
        assert getattr(args, option.dest) == value
        assert args.sources[option.dest] == "command line"
        assert args.training_script == "x.py"


def test_where_values_come_from():
    args = parse(["-r3", "--tee", "1", "x.py", "--nnodes=3"], {"PET_TEE": "2", "PET_ROLE": "a"})
    assert {name for name, source in args.sources.items() if source != "default"} == {
        "redirects",
        "tee",
        "role",
    }
    assert (args.sources["tee"], args.tee) == ("command line", "1")
    assert (args.sources["role"], args.role) == ("PET_ROLE", "a")


def test_a_message_names_the_variable_that_set_the_option():
    args = parse(["--nnodes=2", "x.py"], {"PET_ROLE": "a", "PET_TEE": "1"})
    text = "--nnodes is bad, --role=a too (--tee, -t), but not --rolex or a--tee"
    assert args.name_sources(text) == (
        "--nnodes is bad, variable PET_ROLE=a too (variable PET_TEE, variable PET_TEE), but not "
        "--rolex or a--tee"
    )


def test_what_a_message_quotes_stays():
    """It is a value, which the user has to find as it was written."""
    args = parse(["x.py"], {"PET_ROLE": "a"})
    text = "--role is '--role', the job's --role isn't 'a \\' --role'"
    there = "variable PET_ROLE"
    assert args.name_sources(text) == text.replace("--role is", f"{there} is").replace(
        "s --role", f"s {there}"
    )


@pytest.mark.parametrize(
    ("argv", "is_divided"),
    [
        (["x.py", "-a"], False),
        (["x.py", "--", "-a"], False),
        (["--tee=1", "--", "x.py", "-a"], True),
        (["--", "x.py", "--"], True),
        ([], False),
    ],
)
def test_whether_the_script_is_divided_off(argv, is_divided):
    assert parse(argv, {}).is_divided == is_divided


def test_an_option_may_do_without_its_value():
    args = parse(["--dry-run", "json"], {})
    assert (args.dry_run, args.training_script) == ("text", "json")
    assert parse(["--dry-run=json", "x.py"], {}).dry_run == "json"
    assert parse(["x.py"], {}).dry_run is None


def test_ranges_of_ports():
    assert parse(["--port-range=29500-29599", "x.py"], {}).port_range == (29500, 29599)
    assert parse(["--port_range", "7-7", "x.py"], {}).port_range == (7, 7)


@pytest.mark.parametrize(
    ("argv", "environ", "message"),
    [
        (["--nproc", "2", "x.py"], {}, "no option --nproc; did you mean --nproc-per-node"),
        (["--rdzv-backnd=x", "x.py"], {}, "did you mean --rdzv-backend"),
        (["-x", "x.py"], {}, "there is no option -x"),
        (["--lr", "3", "x.py"], {}, r"there is no option --lr \("),  # and not -r
        (["-nproc-per-node=2"], {}, "no option -nproc-per-node; did you mean --nproc-per-node"),
        (["--zzzz"], {}, r"there is no option --zzzz \("),
        (["--max-restarts", "two", "x.py"], {}, "--max-restarts: 'two' is not a whole number"),
        (["--monitor-interval", "x", "x.py"], {}, "'x' is not a number"),
        (["--master-port", "x", "x.py"], {}, "--master-port: 'x' is not a whole number"),
        (["--max-restarts"], {}, "expected one argument"),
        (["--port-range=7", "x.py"], {}, "'7' is not a range of ports, such as"),
        (["--port-range=9-7", "x.py"], {}, "'9-7' is not a range .* smallest first"),
        (["--port-range=0-7", "x.py"], {}, "'0-7' is not a range .* between 1 and 65535"),
        (["--port-range=a-b", "x.py"], {}, "'a-b' is not a range"),
        (["--start-method=frok", "x.py"], {}, "'frok' is not one of spawn.*did you mean 'fork'"),
        (["--dry-run=xml", "x.py"], {}, "'xml' is not one of text, json"),
        (["x.py"], {"PET_NUMA_BINDING": "nod"}, "variable PET_NUMA_BINDING: .*mean 'node'"),
        (["x.py"], {"PET_MAX_RESTARTS": "two"}, "variable PET_MAX_RESTARTS: 'two'"),
        (
            ["x.py"],
            {"PET_STANDALONE": "maybe"},
            "variable PET_STANDALONE: 'maybe' is not 0, 1, true",
        ),
    ],
)
def test_mistakes_are_named_on_one_line(argv, environ, message):
    with pytest.raises(UsageError, match=message) as caught:
        parse(argv, environ)
    assert "\n" not in str(caught.value)


def test_kubeflow_turns_standalone_on_with_an_empty_variable():
    args = parse(["x.py"], {"PET_STANDALONE": ""})
    assert args.standalone is True
    assert args.sources["standalone"] == "PET_STANDALONE"
    with pytest.raises(UsageError, match="PET_NO_PYTHON: '' is not 0, 1"):
        parse(["x.py"], {"PET_NO_PYTHON": ""})


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
    shown = run_python("-c", code, check=True)
    expected = 0 if argv and argv[0] in ("--help", "--version") else 2
    assert f"HEAVY [] CODE {expected}" in shown.stdout
