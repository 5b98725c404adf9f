"""`--check-plugin` reports exactly the planted faults of plugins."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from plaunch.plugin import KINDS

from helpers.ports import free_port
from helpers.site import Site

EVENT_HANDLER = """
import os, plaunch
from plaunch.errors import UsageError

class Handler:
    def __init__(self, context):
        if context.log_dir is None or not os.path.isdir(context.log_dir):
            raise UsageError("there is no folder")
        self._file = open(os.path.join(context.log_dir, "log"), "w")
        os.set_inheritable(self._file.fileno(), True)                       # fault 1

    def handle(self, event):
        role = event.metadata.get("role", "none")
        self._file.write(role.upper().encode("utf-8", "replace").decode())  # fault 2, if None

    def close(self):
        self._file.flush()                                                  # fault 3, if closed
        self._file.close()
"""
OFFER_AND_END = """
@plaunch.hookimpl
def plaunch_event_handlers(): {end}
"""
HANDLE_AND_END = """
class Handler:
    def __init__(self, context): pass
    def handle(self, event): {end}
    def close(self): pass

@plaunch.hookimpl
def plaunch_event_handlers(): return {{"faulty": Handler}}
"""
LOGS_SPEC = """
import os, plaunch
from plaunch.process import LogsDest, LogsSpecs, to_map, Std
from plaunch_logs_default import DefaultLogsSpecs

class Specs(DefaultLogsSpecs):
    def __init__(self, log_dir=None, redirects=Std.NONE, tee=Std.NONE, local_ranks_filter=None):
        super().__init__(log_dir, redirects, tee, None)                     # fault 1: no filter
        self._is_open = True
        self._first = {}

    def reify(self, envs):
        if len(envs) not in self._first:
            self._first[len(envs)] = super().reify(envs)                    # fault 2: once for all
        return self._first[len(envs)]

    def close(self, succeeded):
        if not self._is_open:
            raise RuntimeError("closed already")                            # fault 3
        self._is_open = False
        super().close(succeeded)
"""
DEVICE_COUNTER = """
import os, plaunch
files = []

def count():
    files.append(open(__file__))                                            # fault 1
    os.environ["COUNTED"] = str(len(files))                                 # fault 2
    return 4.0                                                              # fault 3
"""
SIGNAL_POLICY = """
import signal, plaunch
from plaunch.process import SignalAction

class Policy:
    def __init__(self, context):
        self._actions = {signal.SIGTERM: SignalAction.STOP, signal.SIGKILL: SignalAction.STOP}

    def signals(self):
        return [*self._actions, signal.SIGTERM]                             # faults 1 and 2

    def action(self, signum):
        return self._actions[signum]                                        # fault 3
"""
RESTART_POLICY = """
import plaunch
from plaunch.restarts import Decision, RestartAction

class Policy:
    def __init__(self, context):
        self._host = context.host

    def decide(self, failure, history):
        if history:
            history.pop()                                                   # fault 1
        if failure.exitcode == 2:
            return Decision(RestartAction.STOP)                             # fault 2: no reason
        return Decision(RestartAction.RESTART, f"so says {self._host}")     # fault 3
"""
HEALTH_CHECK = """
import plaunch
from plaunch.doctor import Finding, Status

class Check:
    def __init__(self, context):
        self._folder = context.log_dir.rstrip("/")                          # fault 1: may be None
        self._asked, self._before = 0, None

    def check(self, occasion):
        self._asked += 1
        if not occasion.is_restart:
            self._before = 3
        if self._before < 0:                                                # fault 2: None
            yield Finding(Status.PROBLEM, "acme", "it is less")
        if self._asked == 3:
            yield "all is well"                                             # fault 3
"""
SCHEDULER = """
import os, plaunch
from plaunch.scheduling import Allocation
from plaunch.errors import UsageError

def find(environ):
    if "FAULTY_NODES" not in environ:
        raise UsageError("this job is not accepted")
    text = environ["FAULTY_NODES"]
    nodes = int(text) if text.strip() else 1                                # fault 1
    return Allocation(
        nnodes=max(nodes, 1),
        run_id=os.environ.get("FAULTY_NODES", ""),                          # fault 2
        sources={"nnodes": "FAULTY_NODES", "endpoint": "FAULTY_NODES"},     # fault 3
    )
"""
RENDEZVOUS = """
import socket, plaunch
from plaunch.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

class Handler(RendezvousHandler):
    def __init__(self, params):
        self._run_id = params.run_id
        self._socket = socket.create_server(("127.0.0.1", 0))

    def get_backend(self):
        return "faulty"

    def next_rendezvous(self):
        where = RendezvousStoreInfo("127.0.0.1", self._socket.getsockname()[1])
        return RendezvousInfo(None, 0, 1, where)

    def describe_wait(self):
        return "one\\nother"                                                 # fault 1

    def is_closed(self):
        return False

    def set_closed(self):
        pass

    def num_nodes_waiting(self):
        return None                                                         # fault 2

    def get_run_id(self):
        return self._run_id

    def shutdown(self):
        return True                                                         # fault 3: a port
"""
FAULTS = {
    "event_handlers": (
        *(EVENT_HANDLER, "Handler"),
        {
            "workers inherit nothing from it": "/log'",
            "it takes odd metadata: values that are None": "'NoneType' object has no attribute",
            "it can be closed twice": "closed file",
        },
    ),
    "logs_specs": (
        *(LOGS_SPEC, "Specs"),
        {
            "only ranks in the filter are shown": "are teed, and the filter has {1}",
            "the next attempt has other files": "two attempts have",
            "it can be closed twice": "RuntimeError: closed already",
        },
    ),
    "device_counts": (
        *(DEVICE_COUNTER, "count"),
        {
            "it leaves nothing open": "faulty.py",
            "it leaves the process as it was": "changes the environment",
            "the count is a number that is not negative": "4.0, which is not an int",
        },
    ),
    "signal_policies": (
        *(SIGNAL_POLICY, "Policy"),
        {
            "its signals can be handled": "no process can handle SIGKILL",
            "its signals are signals": "it returns duplicates",
            "it has an action for every other signal": "KeyError",
        },
    ),
    "restart_policies": (
        *(RESTART_POLICY, "Policy"),
        {
            "it changes nothing that it is given": "it has changed the history",
            "a stop says why": "gives no reason",
            "it decides the same on every node": "so says node1",
        },
    ),
    "health_checks": (
        *(HEALTH_CHECK, "Check"),
        {
            "it returns findings without a log folder": "no attribute 'rstrip'",
            "it returns findings after a failure without a start": "TypeError",
            "it returns findings after each failure": "'all is well', which is not a Finding",
        },
    ),
    "schedulers": (
        *(SCHEDULER, "find"),
        {
            "it survives garbage": "ValueError",
            "it reads the environment that it is given": "",
            "it explains what it sets and what it does not": "sources names 'endpoint'",
        },
    ),
    "rendezvous": (
        *(RENDEZVOUS, "Handler"),
        {
            "it describes what it waits for": r"'one\nother'",
            "it answers before and after a round": "num_nodes_waiting() is None",
            "nothing is open after shutdown": "socket:",
        },
    ),
}
OFFER = """
@plaunch.hookimpl
def {hook}():
    return {{"faulty": {factory}}}
"""


def faulty(kind):
    """A module with the faulty plugin of a kind."""
    source, factory, _ = FAULTS[kind]
    (hook,) = (one.hook for one in KINDS if one.name == kind)
    return source + OFFER.format(hook=hook, factory=factory)


def failed(done):
    """Return the failed checks."""
    return set(re.findall("FAILED +(.+)", done.stdout))


HOOKS = """
import os, threading, plaunch

@plaunch.hookimpl
def plaunch_before_rendezvous(group):
    os.environ["HEARD"] = os.environ.get("HEARD", "") + group.run_id        # fault 1

@plaunch.hookimpl
def plaunch_worker_env(worker, env):
    return {"RANK": "7"}                                                    # fault 2

@plaunch.hookimpl
def plaunch_worker_exited(group, exit):
    exit.failure.describe_exit()                                            # fault 3

@plaunch.hookimpl
def plaunch_doctor_checks():
    return ["all is well"]                                                  # fault 4
"""
HOOK_FAULTS = {
    "it leaves the process as it was": "changes the environment",
    "it adds variables and changes none": "may only add variables",
    "it gives the doctor findings": "which is not a Finding",
    "it takes part in a launch: that succeeds": "",
    "it takes part in a launch: that fails": "",
    "it takes part in a launch: that is restarted": "",
    "it takes part in a launch: that is interrupted": "",
    "it takes part in a second launch": "",
}
EXTENSIONS = """
import os, threading, plaunch

class Slow:
    def start(self, control):
        self._file = open(__file__)
        os.set_inheritable(self._file.fileno(), True)                       # fault 1
        control.request("restart", f"{control.snapshot().state} of {context_of.options}")

    def handle(self, event):
        event.metadata["role"].upper()                                      # fault 2, at times

    def stop(self, result):
        self._file.close()
        result.is_failed()                                                  # fault 3

class Half:
    def start(self, control): pass
    def handle(self, event): pass                                           # fault 4: no stop

context_of = None

@plaunch.hookimpl
def plaunch_extensions(context):
    global context_of
    context_of = context
    return [Half()] if os.environ.get("HALF") else [Slow()]
"""
EXTENSION_FAULTS = {
    "workers inherit nothing from it": "/faulty.py'",
    "its extensions take part in a launch that ends at once": "'NoneType' object has no attribute",
}
OPTIONS = """
import dataclasses, zipfile
from plaunch.options import Option
import acme_more                                                            # fault 1

PLUGIN = "acme_plugin"
OPTIONS = (
    Option(("--acme-level", "--rdzv-id"), "how much", read=lambda text: 1 / len(text)),  # 2, 3
    Option(("--acme-mode",), "one\\nother", choices=("a", "b"), bare="c"),    # faults 4 and 5
    Option(("--acme-do",), "do it", read=None, fill="acme_plugin:nothing"),  # fault 6
)
"""
OPTION_FAULTS = {
    "importing it imports nothing else": "imports acme_more",
    "each name is that of one option": "--rdzv-id of --rdzv-id belongs to plaunch itself",
    "odd values are refused: nothing": "ZeroDivisionError",
    "each option has a help text": "is not one line",
    "its choices are valid": "'c' is not one of a, b",
    "what it names can be imported": "no attribute 'nothing'",
}
STARTER = """
import os, resource, signal, subprocess, plaunch

class Starter:
    def begin(self, command, environ):
        self._folder = os.getcwd()

    def wait(self):
        return {"waiting": -1}                                              # fault 1

    def prepare(self, envs):
        pass

    def start(self, local_rank, command, *, env, stdout, stderr, pass_fds=(), binding=None):
        for fd in pass_fds:
            os.set_inheritable(fd, True)
        return subprocess.Popen(
            [word.replace("\\n", " ") for word in command],                 # fault 2
            env={**os.environ, **env},                                      # fault 3
            stdout=stdout,                                                  # fault 4: no stderr
            close_fds=False,                                                # fault 5
            cwd=self._folder,                                               # fault 6
            start_new_session=False,                                        # fault 7
            preexec_fn=self._prepare,
        )                                                                   # fault 8: unbound

    def _prepare(self):
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)                       # fault 9
        resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, 1 << 20))       # fault 10

    def start_helper(self, command, *, env, stdin, stdout, stderr, pass_fds=()):
        return None

    def fds(self):
        return [10**6]                                                      # fault 11

    def close(self):
        pass

    def __str__(self):
        return "one\\nother"                                                # fault 12

@plaunch.hookimpl
def plaunch_worker_starter(context):
    return Starter()
"""
STARTER_FAULTS = {
    "it reports what took time": "waiting took -1",
    "a worker has its arguments": "it has ['', 'two words'",
    "a worker has exactly its environment": "PLAUNCH_CONFORMANCE_LATER",
    "a worker writes where it should": "stderr has ''",
    "a worker has exactly its descriptors": "it has [0, 1, 2, ",
    "a worker has the working folder of the launcher": "it is in ",
    "a worker is a child that leads a session": "it does not lead its own session",
    "it can be killed": "ProcessLookupError",
    "a worker has the signals of a fresh one": "ignored: ",
    "a worker has the limits of the launcher": "RLIMIT_STACK is [1048576, 1048576]",
    "a failed binding is an error": "the worker started without its binding",
    "its descriptors are open": "Bad file descriptor",
    "its description is one line": "its str is 'one",
}
LEAVING_STARTER = """
import os, subprocess, plaunch

class Worker:
    def __init__(self, popen):
        self.pid = popen.pid
        self._popen = popen

    @property
    def returncode(self):
        return self.poll()                                                  # fault 1

    def poll(self):
        code = self._popen.poll()
        return None if code is None else abs(code)                          # fault 2

class Starter:
    def begin(self, command, environ):
        self._workers = []
        self._helper = subprocess.Popen(["sleep", "60"], env=environ)

    def wait(self):
        return {}

    def prepare(self, envs):
        pass

    def start(self, local_rank, command, *, env, binding=None, **options):
        if binding is not None or not os.path.exists(command[0]):
            return None
        worker = Worker(subprocess.Popen(command, env=env, start_new_session=True, **options))
        self._workers.append(worker)
        return worker

    def start_helper(self, command, *, env, stdin, stdout, stderr, pass_fds=()):
        return None

    def fds(self):
        return []

    def close(self):
        del self._helper                                                    # faults 3 and 4
        for worker in self._workers:
            os.kill(worker.pid, 9)                                          # fault 5

@plaunch.hookimpl
def plaunch_worker_starter(context):
    return Starter()
"""
LEAVING_STARTER_FAULTS = {
    "poll is that of a popen": "returncode is set before poll() was called",
    "the signal that ends it is known: SIGTERM": "it is 15, and not -15",
    "closing it leaves nothing": "",
    "it can be closed twice": "AttributeError",
    "workers survive its end": "",
    "a round may end before its workers are started": "",
    "closing it ends a wait": "it leaves pid",
}
GREETER = """
import plaunch

@plaunch.hookimpl
def plaunch_workers_started(group):
    print("hello", [worker.pid for worker in group.workers])
"""


@pytest.mark.parametrize("kind", FAULTS)
def test_exactly_the_planted_faults_are_named(check, kind):
    *_, faults = FAULTS[kind]
    argv = (f"--check-plugin={kind}:faulty", "-pfaulty")
    done = check(*argv, source=faulty(kind), FAULTY_NODES="2")
    assert done.returncode == 1, done.stdout + done.stderr
    assert failed(done) == set(faults), done.stdout
    _, _, details = done.stdout.partition("\n\n")
    blocks = re.split(r"\n(?=\S)", details)
    for check_name, found in faults.items():
        (block,) = (b for b in blocks if re.match(f".+ 'faulty': {check_name}\n", b))
        assert "expected: " in block
        assert found in block.partition("found: ")[2]
    assert re.search(r"^\d+ checks: \d+ passed, 3 failed, \d+ skipped$", done.stdout, re.M)
    assert done.stderr == ""


def test_a_plugin_without_faults_passes(check):
    done = check("--check-plugin", "null")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("event handler 'null'\n  ok  ")
    assert "\n  FAILED" not in done.stdout
    assert " 0 failed" in done.stdout.splitlines()[-1]


def test_the_callers_pytest_settings_are_ignored(check):
    done = check("--check-plugin=cpu", PYTEST_ADDOPTS="--no-such-option", PYTEST_PLUGINS="missing")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_name_of_several_kinds_is_checked_in_all_of_them(check):
    source = faulty("device_counts") + faulty("signal_policies")
    done = check("--check-plugin=faulty", "-pfaulty", source=source)
    assert re.findall(r"^(\w+ \w+) 'faulty'$", done.stdout, re.M) == [
        "device counter",
        "signal policy",
    ]
    assert " 6 failed" in done.stdout.splitlines()[-1]


def test_a_name_may_be_written_with_its_distribution(check):
    done = check("--check-plugin=plaunch:cpu")
    assert done.returncode == 0
    assert done.stdout.startswith("device counter 'plaunch:cpu'\n")


def test_a_plugin_that_hangs_is_named(check):
    source = """
import threading, plaunch

@plaunch.hookimpl
def plaunch_signal_policies():
    return {"faulty": lambda context: threading.Event().wait()}
"""
    done = check("--check-plugin=faulty", "-pfaulty", source=source)
    assert done.returncode == 1
    assert "signal policy 'faulty': 3 checks fail alike\n" in done.stdout
    assert done.stdout.count("found: creating it takes more than 5 s") == 1
    assert done.stdout.endswith(
        "\nthe other checks were skipped, because it does not answer in time\n"
    )


def test_a_plugin_that_only_has_hooks_is_checked(check):
    done = check("--check-plugin=faulty", "-pfaulty", source=HOOKS)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("plugin 'faulty'\n  ok  ")
    assert failed(done) == set(HOOK_FAULTS), done.stdout
    for text in HOOK_FAULTS.values():
        assert text in done.stdout
    # The same failure in several checks is reported once.
    assert "plugin 'faulty': 5 checks fail alike\n    it takes part in a launch: " in done.stdout
    assert done.stdout.count("object has no attribute 'describe_exit'") == 1


@pytest.mark.parametrize(
    ("environ", "faults"),
    [
        ({}, EXTENSION_FAULTS),
        ({"HALF": "1"}, {"it gives extensions": "has no stop"}),
    ],
)
def test_extensions_are_checked(check, environ, faults):
    done = check("--check-plugin=faulty", "-pfaulty", source=EXTENSIONS, **environ)
    assert failed(done) >= set(faults), done.stdout
    if not environ:
        assert failed(done) == set(faults), done.stdout
    for text in faults.values():
        assert text in done.stdout


@pytest.mark.parametrize(
    ("source", "faults", "is_exact"),
    [(STARTER, STARTER_FAULTS, True), (LEAVING_STARTER, LEAVING_STARTER_FAULTS, False)],
)
def test_a_starter_of_workers_is_checked(check, source, faults, is_exact):
    done = check("--check-plugin=faulty", "-pfaulty", source=source)
    assert (done.returncode, done.stderr) == (1, "")
    assert "\nstarter of plugin 'faulty'\n" in done.stdout
    assert failed(done) >= set(faults), done.stdout
    if is_exact:
        # With one processor, all are bound to that.
        others = failed(done) - {"a worker is bound before it begins"}
        assert others == set(faults), done.stdout
    for text in faults.values():
        assert text in done.stdout


# A launch without --local-addr gives None.
NEEDS_AN_ADDRESS = "\n".join(
    [
        RENDEZVOUS.replace('"one\\nother"', '"others"').replace("return None  ", "return 0  "),
        "class Found(Handler):",
        "    def __init__(self, params):",
        "        super().__init__(params)",
        "        params.local_addr.encode()",
        "    def shutdown(self):",
        "        self._socket.close()",
        "        return True",
        OFFER.format(hook="plaunch_rendezvous_backends", factory="Found"),
    ]
)


@pytest.mark.parametrize(("options", "passes"), [([], False), (["--local-addr=127.0.0.1"], True)])
def test_a_backend_gets_the_address_that_a_launch_gives(check, options, passes):
    done = check("--check-plugin=rendezvous:faulty", "-pfaulty", *options, source=NEEDS_AN_ADDRESS)
    assert (done.returncode == 0) is passes, done.stdout + done.stderr
    found = "'NoneType' object has no attribute 'encode'"
    assert (found in done.stdout + done.stderr) is not passes


ENDS = {
    "when it is imported": ("{end}", "", "before the first one"),
    "when it offers names": (OFFER_AND_END, "", "before the first one"),
    "in a check": (HANDLE_AND_END, "", "during the check 'using it does not"),
    "in C": (HANDLE_AND_END, "ctypes.CDLL(None)._exit(0)", "during the check 'using it does not"),
}


@pytest.mark.parametrize("where", ENDS)
def test_a_plugin_that_ends_the_process_does_not_pass(check, where):
    source, end, step = ENDS[where]
    source = "import ctypes, os, plaunch\n" + source.format(end=end or "os._exit(0)")
    done = check("--check-plugin=event_handlers:faulty", "-pfaulty", source=source)
    assert done.returncode == 110, done.stdout + done.stderr
    said = "plaunch: --check-plugin=event_handlers:faulty: the process of the checks ended early, "
    assert done.stderr.startswith(said + step)
    assert "with exit code 0. The plugin, or a library that it uses, has ended it" in done.stderr
    assert " passed, " not in done.stdout


EXAMPLE = (
    Path(__file__)
    .parents[2]
    .joinpath("examples/plaunch-example-plugins/src/plaunch_example_plugins/restarts.py")
)
COUNTED = "used = sum(earlier.decision.costs for earlier in history)"
WAYS_TO_BREAK = {
    "it raises at the first failure": (
        COUNTED,
        f"history[-1]; {COUNTED}",
        "it decides about every cause: worker",
    ),
    "it is slow with many failures": (
        COUNTED,
        f"__import__('time').sleep(2 * (len(history) > 1000)); {COUNTED}",
        "it is quick with a long history",
    ),
    "it keeps a number": (
        COUNTED,
        'used = self._used = getattr(self, "_used", -1) + 1',
        "it keeps nothing between calls",
    ),
    "it names one host, not a list": (
        "without=[failure.host]",
        "without=failure.host",
        "it decides about every cause: worker",
    ),
    "it stops without a word": (
        'f"{used} restarts did not help"',
        '""',
        "a stop says why",
    ),
}


@pytest.mark.parametrize("way", WAYS_TO_BREAK)
def test_the_restart_policy_of_the_examples_is_caught_when_it_is_broken(check, way):
    right, wrong, found = WAYS_TO_BREAK[way]
    # Among the codes of the suite is the one that it looks for.
    source = EXAMPLE.read_text().replace("BROKEN = 75", "BROKEN = 255")
    assert right in source
    offer = OFFER.format(hook="plaunch_restart_policies", factory="BrokenDevicePolicy")
    source = source.replace(right, wrong) + "\nimport plaunch\n" + offer
    done = check("--check-plugin=restart_policies:faulty", "-pfaulty", source=source)
    assert done.returncode == 1, done.stdout + done.stderr
    assert found in failed(done), done.stdout


def install_options(folder, source, plugin):
    """A package whose plugin has options."""
    modules = {"acme_declares": source, "acme_plugin": plugin, "acme_more": ""}
    declared = {"plaunch.options": {"acme": "acme_declares"}}
    Site(folder, "").install("acme_options", declared, metadata_name="acme-options", **modules)


@pytest.mark.parametrize("name", ["acme", "options:acme", "Acme.Options:acme"])
def test_a_module_with_options_is_checked_with_its_plugin(check, tmp_path, name):
    install_options(tmp_path, OPTIONS, GREETER)
    done = check(f"--check-plugin={name}")
    assert (done.returncode, done.stderr.count("--rdzv-id")) == (1, 1), done.stderr
    assert failed(done) == set(OPTION_FAULTS), done.stdout
    for text in OPTION_FAULTS.values():
        assert text in done.stdout
    heads = re.findall(r"^((?:options of )?plugin) '.*acme'$", done.stdout, re.M)
    assert heads == ["options of plugin", "plugin"]


def test_unusable_options_end_the_check(check, tmp_path):
    install_options(tmp_path, "OPTIONS = 3", GREETER)
    done = check("--check-plugin=acme")
    assert done.returncode == 110
    assert "the options of plugin 'acme' (acme-options 1.0) cannot be used: " in done.stderr


def test_a_plugin_is_checked_with_the_given_options(check, tmp_path):
    declares = """
from plaunch.options import Option, integer
PLUGIN = "acme_plugin"
OPTIONS = (Option(("--acme-level",), "how much", read=integer),)
"""
    plugin = """
import plaunch
@plaunch.hookimpl
def plaunch_extensions(context):
    assert context.options == {"acme_level": 7}
"""
    install_options(tmp_path, declares, plugin)
    assert check("--check-plugin=acme", "--acme-level=7").returncode == 0
    assert check("--check-plugin=acme", "--acme-level=8").returncode == 1


@pytest.mark.parametrize("name", ["greeter", "plugin:greeter", "Acme.Hooks:greeter"])
def test_an_installed_package_of_hooks_passes(check, tmp_path, name):
    offers = {"plaunch.plugins": {"greeter": "faulty"}}
    Site(tmp_path, "").install("acme_hooks", offers, metadata_name="acme-hooks")
    done = check(f"--check-plugin={name}", source=GREETER)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\n  ok        it takes part in a second launch\n" in done.stdout


def test_the_traceback_is_shown_on_request(check):
    argv = ("--check-plugin=faulty", "-pfaulty")
    plain = check(*argv, source=faulty("event_handlers"))
    debug = check(*argv, source=faulty("event_handlers"), PLAUNCH_DEBUG="1")
    assert "in handle" not in plain.stdout
    assert "role.upper()" in debug.stdout


@pytest.mark.parametrize(
    ("argv", "message", "code"),
    [
        (["consol"], "names no plugin; did you mean 'console'", 2),
        (["rendezvous:slurm"], "rendezvous backend 'slurm' is unknown", 2),
        (["null", "-pno:null"], "names no plugin", 2),
        (
            ["c10d", "--rdzv-conf=store_typ=tcp"],
            "no option 'store_typ'.*add the --rdzv-endpoint",
            2,
        ),
        (["jsonl", "--event-conf=jsonl.pth=x"], "did you mean 'path'", 2),
    ],
)
def test_errors_have_one_line(check, argv, message, code):
    done = check("--check-plugin", *argv)
    assert (done.returncode, done.stdout) == (code, "")
    assert re.match(f"plaunch: error: .*{message}.*\n$", done.stderr)


def test_without_pytest_the_extra_is_named(check, tmp_path):
    hide = "import sys\nsys.modules['pytest'] = None\n"
    (tmp_path / "sitecustomize.py").write_text(hide)
    done = check("--check-plugin", "null")
    assert done.returncode == 110
    assert done.stderr == (
        "plaunch: --check-plugin needs pytest, which is not installed; "
        "python -m pip install 'plaunch[testing]'\n"
    )


# --- those that take longer -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *("static", "default", "auto", "gpu", "xpu", "console", "notify", "kubernetes", "mpi"),
        *("completion", "devices", "doctor", "status", "testing", "timer"),
    ],
)
def test_plugins_of_plaunch_pass(check, name):
    done = check("--check-plugin", name)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_backend_that_a_node_hosts_passes(check):
    pytest.importorskip("torch.distributed")
    done = check("--check-plugin=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a leader dies at any step" in done.stdout


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["etcd", "etcd-v2"])
def test_a_backend_with_a_server_passes(check, etcd_server, name):
    done = check(f"--check-plugin={name}", f"--rdzv-endpoint={etcd_server.endpoint}")
    assert done.returncode == 0, done.stdout + done.stderr
