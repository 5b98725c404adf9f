"""The bounds of docs/contributing.md: no large module, no large class, no circle of imports."""

from __future__ import annotations

import ast
import graphlib
import re
from collections import Counter

import pytest

from helpers.sources import PATHS, parse_all, targets_of

LINES, METHODS = 400, 30


def imported_by(name):
    """The modules of ours that a module imports, in functions and for types, too."""
    for node in ast.walk(parse_all()[name]):
        for found in targets_of(node):
            # The names of a package are where its lazy table says, which is read later.
            if found in PATHS and (found.count(".") or isinstance(node, ast.Import)):
                yield found


def test_the_modules_are_found():
    assert {"plaunch", "plaunch.agent.loop", "plaunch_doctor.command"} <= PATHS.keys()
    assert "plaunch.agent.machine" in imported_by("plaunch.agent.loop")


# Modules that have grown beyond the limit and are to be split. No other may join them.
STILL_LONG: set[str] = set()


def test_a_module_is_read_in_one_go():
    found = {path.name for path in PATHS.values() if len(path.read_text().splitlines()) > LINES}
    assert found == STILL_LONG


def test_no_class_has_thirty_methods():
    for name, tree in parse_all().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
                assert len(methods) < METHODS, f"{name}.{node.name}"


def test_the_name_of_a_class_is_used_once():
    counts = Counter(
        node.name
        for tree in parse_all().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in counts.items() if count > 1] == []


def test_nothing_is_imported_in_a_circle():
    graphlib.TopologicalSorter({name: set(imported_by(name)) - {name} for name in PATHS}).prepare()


# --- no code looks into a sentence that was written for people ------------------------------------

CUTTING = frozenset(
    "split rsplit partition rpartition startswith endswith removeprefix removesuffix find rfind "
    "index rindex replace".split()
)
SENTENCES = frozenset("reason decision no_restart headline cause summary why".split())
ERRORS = frozenset("error exc failing problem raised".split())
# What other programs have written has no fields.
OF_OTHERS = {
    "plaunch.process.excerpts": {"    "},  # lines of a traceback of Python
    "plaunch.process.proc": {"] "},  # stacks in /proc
    "plaunch.process.watches": {b"frozen 1"},  # a file of a control group
    "plaunch.threads": {"_NO_THREAD"},  # an error of Python
    "plaunch_engines.kubernetes_client": {"namespaces ", " cannot "},  # errors of Kubernetes
    "plaunch_engines.plan": {"No module named 'plaunch"},  # an error of another Python
    "plaunch_engines.slurm_steps": {" is pending: "},  # what salloc prints
    "plaunch.process.tracebacks": {"  + Exception Group "},
    "plaunch_hang.stacks.exit_places": {"<frozen "},
    "plaunch_hang.stacks.py_spy": {
        *("Error: ", "Stack backtrace:", "no such process", "no such file or directory"),
        *("permission denied", "operation not permitted"),
        *("python interpreter", "python version from target"),
    },
    "plaunch_hang.stacks.stack": {"<frozen "},
    "plaunch_network.address": {"/32 host LOCAL"},  # a file in /proc/net
    "plaunch_network.torch_store": {"without libuv"},  # an error of torch
    "plaunch_rendezvous_etcd.client": {"authentication failed"},  # errors of etcd
    "plaunch_rendezvous_etcd.diagnosis": {"HTTP/1.1 200"},
    "plaunch_rendezvous_etcd.link": {"larger than max", "too large"},
    "plaunch_rendezvous_static.round_store": {"chr(10)"},  # the first line of an error of torch
    "plaunch_testing.check.running": {"AssertionError: ", "Failed: ", "Skipped: ", "\nassert "},
    "plaunch_testing.conformance.jobs": {"rank 1"},  # suites check messages
    "plaunch_testing.conformance.plugin_suite": {"loaded torch"},
    "plaunch_testing.conformance.rounds": {"enough", "no progress"},
    "plaunch_worker_store.serving": {"without libuv"},
    "plaunch_worker_store.loading": {b" (deleted)"},  # /proc/PID/maps
}


def cuts_in(tree):
    """What a module cuts a text at or searches in it: the text, and a constant if it is one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            if node.func.attr in CUTTING:
                yield node.func.value, node.args[0]
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            if isinstance(node.comparators[0], (ast.Name, ast.Attribute, ast.Call)):
                yield node.comparators[0], node.left


def is_sentence(text):
    """Whether the name of this expression is that of a sentence for people."""
    if isinstance(text, ast.Call):
        return ast.unparse(text.func) == "str" and ast.unparse(text.args[0]) in ERRORS
    return getattr(text, "attr", getattr(text, "id", "")) in SENTENCES


def words_cut_at(tree):
    """The constants with words at which a module cuts texts, or `None` for a sentence's."""
    for text, where in cuts_in(tree):
        constants = where.elts if isinstance(where, (ast.Tuple, ast.Set)) else [where]
        for one in constants:
            value = one.value if isinstance(one, ast.Constant) else None
            if is_sentence(text):
                yield value if isinstance(value, (str, bytes)) else ast.unparse(one)
            elif isinstance(value, (str, bytes)):
                space = " " if isinstance(value, str) else b" "
                if space in value and (value.strip() or len(value) > 1):
                    yield value


@pytest.mark.parametrize(
    "source",
    [
        'what, _, decision = text.partition("; ")',
        'is_known = reason.partition(".")[0] in known',
        'is_lost = "was lost" in text',
        "is_lost = cause in round.reason",
        'how = words.removeprefix("killed by ")',
        'is_other = str(error).startswith("timeout")',
        "is_named = endpoint in str(failing)",
        "error.args = (str(error).replace(folder, path),)",
    ],
)
def test_code_that_looks_into_a_sentence_is_found(source):
    assert [*words_cut_at(ast.parse(source))]


def test_no_code_looks_into_a_sentence_for_people():
    """A sentence may contain a user's text. What code needs of it is a field of its own."""
    found = {name: {*words_cut_at(tree)} for name, tree in parse_all().items()}
    wrong = {name: words - OF_OTHERS.get(name, set()) for name, words in found.items()}
    assert {name: words for name, words in wrong.items() if words} == {}
    assert {name: words - found[name] for name, words in OF_OTHERS.items()} == {
        name: set() for name in OF_OTHERS
    }


# --- nor does a regular expression ----------------------------------------------------------------

MATCHING = frozenset("compile findall finditer fullmatch match search split sub subn".split())
WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2}|[A-Za-z]{3}")  # not the letter of an escape
# Modules whose expressions with words are about what others have written, or decide nothing.
WITH_PATTERNS_OF_OTHERS = frozenset(
    {
        "plaunch.process.interleaved",  # tracebacks of Python
        "plaunch.process.tracebacks",  # Python, glibc, torch
        "plaunch.process.frames",  # faulthandler
        "plaunch_engines.kubernetes_client",  # urllib3
        "plaunch_engines.slurm_allocation",  # what salloc prints
        "plaunch_events.redaction",  # secrets in any text
        "plaunch_hang.process",  # the title of a process, made of numbers
        "plaunch_report.colors",  # paints ranks and paths of messages
        "plaunch_report.failure_bundle.oom_kills",  # the kernel
        "plaunch_report.failure_bundle.system",  # the kernel
        "plaunch_report.hints",  # Python, C++ and torch
    }
)


def patterns_with_words(tree):
    """The constant parts of regular expressions that have a space and a word."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        function = ast.unparse(node.func).split(".")
        if function[0] == "re" and function[-1] in MATCHING:
            for part in ast.walk(node.args[0]):
                value = part.value if isinstance(part, ast.Constant) else None
                text = value.decode("latin-1") if isinstance(value, bytes) else value
                if isinstance(text, str) and " " in text and WORD.search(text):
                    yield text


@pytest.mark.parametrize(
    "source",
    [
        'ACCOUNT = re.compile(rb"plaunch: restarted in ")',
        "JOB = re.compile(r\"^job '([^']+)'\", re.M)",
        'found = re.search(rf"rank {rank} has failed", text)',
    ],
)
def test_a_pattern_of_a_sentence_is_found(source):
    assert [*patterns_with_words(ast.parse(source))]


def test_no_regular_expression_looks_into_a_sentence_for_people():
    found = {name: [*patterns_with_words(tree)] for name, tree in parse_all().items()}
    assert {name for name, texts in found.items() if texts} == WITH_PATTERNS_OF_OTHERS
