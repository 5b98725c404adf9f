"""The messages of the product: users do not know the names of its threads, classes and plugins."""

from __future__ import annotations

import ast
import importlib
import os
import re

import pytest
from plaunch.errors import one_line
from plaunch.plugin import PluginManager, hookspecs
from plaunch.plugin.kinds import KINDS, WITH_OPTIONS

from helpers.messages import find_messages
from helpers.sources import parse_all

# What users write themselves: programs, and functions of the API.
PUBLIC_MODULES = ("python -m plaunch_torchrun", "plaunch_torchrun.elastic.timer.configure")
HOOKS = [name for name in vars(hookspecs) if name.startswith("plaunch_")]
PUBLIC_ROOM = re.compile(r"plaunch\.[a-z]\w*")  # such as plaunch.engines
PLACEHOLDER = re.compile(r"\{[^{}]*\}")
CLASS_NAME = re.compile(r"\b_?(?:[A-Z][a-z]+){2,}\b")  # a word such as LoopWatchdog
THREAD = re.compile(r"\{(?:self\.)?_?\w*(?:thread|threading\.\w+\(\))\.name", re.IGNORECASE)


def thread_names():
    """The names that the product gives its threads, up to the first variable part."""
    for tree in parse_all().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and "Thread" in ast.unparse(node.func):
                for keyword in node.keywords:
                    if keyword.arg == "name":
                        name = keyword.value
                        first = name.values[0] if isinstance(name, ast.JoinedStr) else name
                        if isinstance(first, ast.Constant):
                            yield str(first.value)  # such as plaunch-reader


def own_classes():
    """The classes of the product that no package or module exports."""
    found = {
        node.name
        for module, tree in parse_all().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and not PUBLIC_ROOM.fullmatch(module)
    }
    for name, tree in parse_all().items():
        assigned = (node for node in tree.body if isinstance(node, (ast.Assign, ast.AnnAssign)))
        if any("__all__" in ast.unparse(node).partition("= ")[0] for node in assigned):
            found -= {*importlib.import_module(name).__all__}
    return found


def is_expression(text):
    """Whether it is code, such as the annotation `Engine | BatchEngine`, and not a message."""
    try:
        ast.parse(text, mode="eval")
    except SyntaxError:
        return False
    return True


def test_the_catalogue_has_the_messages():
    texts = [message.text for message in find_messages()]
    assert "the launcher cannot start another thread: {describe_shortage()}" in texts
    assert len(texts) > 2000
    assert {"plaunch-end", "plaunch-stderr"} <= {*thread_names()}
    assert "LoopWatchdog" in own_classes()
    assert not {"LaunchConfig", "LogsSpecs", "RestartAction"} & own_classes()


def test_no_message_names_a_thread():
    names = [re.escape(one.strip("-")) for one in thread_names() if re.match("plaunch-.", one)]
    pattern = re.compile(rf"\b(?:{'|'.join(names)})\b")
    for message in find_messages():
        # A thread of a plugin or of a worker is named: its author gave it the name.
        modules = ("plaunch.cli.entry", "plaunch_hang.stacks.exit_places")
        if message.module in modules and "thread {thread.name" in message.text:
            continue
        assert not THREAD.search(message.text), message
        words = PLACEHOLDER.sub("", message.text).replace("(for plaunch-report)", "")
        assert not pattern.search(words.replace("plaunch-report: error:", "")), message


def test_messages_go_to_the_log_of_the_launcher():
    """Loggers with another name have neither its format nor its level."""
    names = {
        ast.unparse(node.args[0]) if node.args else ""
        for tree in parse_all().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "logging.getLogger"
    }
    # The root logger, that of torch's events, and one whose name a program gives.
    others = {"", "f'torchelastic-events-{destination}'", "name"}
    assert names == {"'plaunch'", *others}


def test_no_message_names_an_internal_class():
    internal = own_classes()
    for message in find_messages():
        words = PLACEHOLDER.sub("", message.text)
        if internal.intersection(CLASS_NAME.findall(words)):
            # Code, or what repr() returns.
            assert is_expression(words) or re.match(r"<?\w+\(?[{,]|<\w+", message.text), message


def test_no_message_names_a_module_or_a_plugin_of_plaunch():
    plugins = {one.name for one in PluginManager.create(environ={}).plugin_options()}
    named = re.compile(rf"\bplugin '(?:{'|'.join(plugins)})'")
    for message in find_messages():
        text = message.text
        if text.startswith("import "):
            continue  # a program
        for public in (*PUBLIC_MODULES, *HOOKS):
            text = text.replace(public, "")
        assert not re.search(r"\bplaunch_[a-z]", PLACEHOLDER.sub("", text)), message
        assert not named.search(text), message


def test_plugins_that_come_with_plaunch_are_known_by_what_they_do():
    manager = PluginManager.create(environ={})
    plugins = [one for one in manager.plugin_options() if one.is_first_party]
    assert len(plugins) > 15
    for plugin in plugins:
        if plugin.plugin or plugin.declared("AFTER_FAILURE"):
            known_as = plugin.declared("KNOWN_AS")
            assert known_as, plugin.name
            assert plugin.who == known_as
            assert manager.load_named(WITH_OPTIONS, plugin.name).who == known_as
    for loaded in manager.selected():
        assert loaded.who == loaded.known_as


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_components_that_come_with_plaunch_are_known_by_the_name_that_users_write(kind):
    manager = PluginManager.create(environ={})
    for name in manager.names(kind):
        if name != "etcd-v2" and not manager.origin(kind, name):
            assert manager.who(kind, name) == f"{kind.label} {name!r}"


# --- errors of the system -------------------------------------------------------------------------

OF_THE_SYSTEM = {"OSError", "FileNotFoundError", "PermissionError", "ConnectionError"}
# Modules that add the file, the address or the program where they use the text.
ADDED_LATER = {
    "plaunch.cli.stdout",
    "plaunch_command_line.settings_file",
    "plaunch_doctor.network",
    "plaunch_engines.kubernetes_client",
    "plaunch_engines.kubernetes_template",
    "plaunch_hang.extension",
    "plaunch_hang.stacks.taking",
    "plaunch_job_store.host",
    "plaunch_rendezvous_c10d.torch_import",
    "plaunch_rendezvous_etcd.protocol",
    "plaunch_rendezvous_static.exchange",
    "plaunch_report.bundles",
}


def texts_of(handler):
    """The places in a handler of exceptions where the text of its exception is used."""
    for node in ast.walk(handler):
        if isinstance(node, ast.Attribute) and node.attr == "strerror":
            yield node
        elif isinstance(node, ast.FormattedValue) and ast.unparse(node.value) == handler.name:
            yield node
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("str", "os.strerror"):
            if handler.name in ast.unparse(node):
                yield node


def has_other_words(node, parents):
    """Whether a text of an exception is a part of a sentence, or an argument beside one."""
    while not isinstance(node, ast.stmt):
        node = parents[node]
        if isinstance(node, ast.JoinedStr):
            values = [value for value in node.values if isinstance(value, ast.FormattedValue)]
            constants = [
                str(value.value) for value in node.values if isinstance(value, ast.Constant)
            ]
            return len(values) > 1 or re.search("[a-z]{2}", "".join(constants)) is not None
        if isinstance(node, ast.Call):
            arguments = map(ast.unparse, node.args)
            if any(re.match("f?[\"'].* ", argument) for argument in arguments):
                return True
    return False


def test_no_reason_is_an_error_of_the_system_alone():
    """`No such file or directory` helps nobody who does not know which, or what was attempted."""
    found = set()
    for module, tree in parse_all().items():
        parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        for handler in ast.walk(tree):
            if isinstance(handler, ast.ExceptHandler) and handler.name and handler.type:
                names = {ast.unparse(node).rpartition(".")[2] for node in ast.walk(handler.type)}
                if names & OF_THE_SYSTEM:
                    for node in texts_of(handler):
                        if not has_other_words(node, parents):
                            found.add((module, getattr(node, "lineno", handler.lineno)))
    assert {place for place in found if place[0] not in ADDED_LATER} == set()
    assert {module for module, _ in found} == ADDED_LATER, "these no longer need an exception"


def test_an_error_of_the_system_without_a_file_says_what_was_attempted():
    def duplicate(descriptor):
        os.dup(descriptor)

    with pytest.raises(OSError, match="Bad file") as caught:
        duplicate(-1)
    said = "OSError: [Errno 9] Bad file descriptor"
    assert one_line(caught.value) == f"{said} (in duplicate: os.dup(descriptor))"
    assert one_line(OSError(9, "Bad file descriptor")) == said
    with pytest.raises(FileNotFoundError) as caught:
        os.stat("/no/such/file")
    assert one_line(caught.value).endswith("No such file or directory: '/no/such/file'")
