"""Plugins that were written for torchrun (tests/data/torchrun_package) work unchanged."""

from __future__ import annotations

import os
from inspect import signature
from pathlib import Path

import pytest
from plaunch import errors
from plaunch.errors import LogDirectoryError, PluginError, PluginLoadError, UsageError
from plaunch.plugin.kinds import LOGS_SPECS, RENDEZVOUS
from plaunch.process.logs import LogsDest, LogsSpecs, Std
from plaunch.rendezvous import RendezvousHandler, RendezvousParameters
from plaunch_torchrun.bridges import TorchLogsSpecs

from helpers.programs import run_python

PACKAGE = Path(__file__).parent.parent / "data" / "torchrun_package"


@pytest.fixture
def manager(checked_in):
    return checked_in("torchrun_package")()


# --- logs specs -----------------------------------------------------------------------------------


def test_a_logs_spec_of_torchrun_is_adapted(manager) -> None:
    specs = manager.get(LOGS_SPECS, "acme-flat")
    assert issubclass(specs, LogsSpecs)
    assert specs.__name__ == "FlatLogsSpecs"


def test_sinks_of_a_logs_spec_of_torchruns_are_opened() -> None:
    opened = []

    class WithSinks:
        root_log_dir = None

        def open_sink(self, local_rank, stream):
            opened.append((local_rank, stream))

    specs = TorchLogsSpecs(WithSinks())
    dest = LogsDest({0: ""}, {0: ""})
    streams = specs.open_streams(dest, 1, prefixes={0: ""}, capture_stderr=False)
    assert streams.child_fds(0) == (None, None)
    assert opened == [(0, "stdout"), (0, "stderr")]


STREAMS = {
    "none": (Std.NONE, ["", ""]),
    "all": (Std.ALL, ["0.out", "1.out"]),
    "by rank": ({1: Std.OUT}, ["", "1.out"]),
}


@pytest.mark.parametrize(("redirects", "expected"), STREAMS.values(), ids=STREAMS)
def test_streams_are_converted_to_torchs_type_and_back(
    manager, tmp_path, redirects, expected
) -> None:
    specs = manager.get(LOGS_SPECS, "acme-flat")(
        log_dir=str(tmp_path), redirects=redirects, tee=Std.ERR, local_ranks_filter={0}
    )
    envs = {0: {"RANK": "0"}, 1: {"RANK": "1"}}
    dest = specs.reify(envs)
    assert type(dest) is LogsDest
    assert [Path(path).name for path in dest.stdouts.values()] == expected
    assert dest.tee_stderrs == dest.stderrs == {r: f"{tmp_path}/{r}.err" for r in (0, 1)}
    assert dest.tee_stdouts == {}
    assert (dest.filtered_stdout, dest.filtered_stderr) == ("", "")
    assert envs[1]["TORCHELASTIC_ERROR_FILE"] == dest.error_files[1] == f"{tmp_path}/1.json"
    assert specs.root_log_dir == str(tmp_path)
    specs.close(succeeded=True)


def test_paths_of_none_become_empty(manager, tmp_path) -> None:
    specs = manager.get(LOGS_SPECS, "acme-flat")(log_dir=str(tmp_path))
    of_torch = specs._specs.reify({0: {}, 1: {}})
    nothing = {0: None, 1: None}
    of_torch.stdouts = {0: None, 1: "out"}
    of_torch.stderrs = of_torch.tee_stdouts = of_torch.tee_stderrs = of_torch.error_files = nothing
    of_torch.filtered_stdout = of_torch.filtered_stderr = None
    specs._specs.reify = lambda envs: of_torch
    assert specs.reify({0: {}, 1: {}}) == LogsDest(
        stdouts={0: "", 1: "out"}, stderrs={0: "", 1: ""}, error_files={0: "", 1: ""}
    )


def test_it_gets_torchs_own_values(manager, tmp_path) -> None:
    specs = manager.get(LOGS_SPECS, "acme-flat")(
        log_dir=str(tmp_path), redirects=Std.OUT, tee={0: Std.ERR}, local_ranks_filter={3}
    )
    from torch.distributed.elastic.multiprocessing import Std as TorchStd

    wrapped = specs._specs
    assert type(wrapped._redirects) is TorchStd
    assert {type(std) for std in wrapped._tee.values()} == {TorchStd}
    assert wrapped._local_ranks_filter == {3}


def test_a_log_directory_that_is_a_file_is_plaunchs_error(manager, tmp_path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LogDirectoryError, match="is a file"):
        manager.get(LOGS_SPECS, "acme-flat")(log_dir=str(tmp_path / "file"))


def test_torchs_own_default_logs_spec_works(site, tmp_path) -> None:
    of_torch = "torch.distributed.elastic.multiprocessing:DefaultLogsSpecs"
    site.install("torch", {"torchrun.logs_specs": {"default": of_torch}})
    specs = site.manager().get(LOGS_SPECS, "torch:default")(
        log_dir=str(tmp_path / "logs"), redirects=Std.ALL
    )
    dest = specs.reify({0: {"TORCHELASTIC_RUN_ID": "job"}})
    assert dest.stdouts[0].endswith("/attempt_0/0/stdout.log")
    if "duplicate_stdout_filters" in signature(type(specs)).parameters:  # since torch 2.9
        assert dest.filtered_stdout.endswith("/attempt_0/filtered_stdout.log")
    assert repr(specs).startswith("DefaultLogsSpecs(")


# --- rendezvous -----------------------------------------------------------------------------------


def params(backend: str = "acme", **options: object) -> RendezvousParameters:
    return RendezvousParameters(backend, "10.0.0.9:1234", "job", 1, 2, "10.0.0.1", **options)


def create(manager, name: str = "acme", **options: object) -> RendezvousHandler:
    return manager.get(RENDEZVOUS, name)(params(name, **options))


def test_a_backend_of_torchrun_is_adapted(manager) -> None:
    handler = create(manager, rank="1", waiting="3")
    assert isinstance(handler, RendezvousHandler)
    assert (handler.get_backend(), handler.get_run_id()) == ("acme", "job")
    assert handler.num_nodes_waiting() == 3
    assert handler.use_agent_store is False
    assert handler.hosts_worker_store is False
    info = handler.next_rendezvous()
    assert (info.rank, info.world_size) == (1, 2)
    assert info.bootstrap_store_info.master_addr == "10.0.0.9"
    assert info.bootstrap_store_info.master_port == 1234
    info.store.set("key", "value")
    assert info.store.get("key") == b"value"


def test_it_gets_torchs_own_parameters(manager) -> None:
    from torch.distributed.elastic.rendezvous.api import RendezvousParameters as TorchParameters

    given = create(manager, some_option="x", flag="yes")._handler.params
    assert type(given) is TorchParameters
    assert (given.endpoint, given.local_addr) == ("10.0.0.9:1234", "10.0.0.1")
    assert (given.min_nodes, given.max_nodes) == (1, 2)
    assert given.config == {"timeout": 900, "some_option": "x", "flag": "yes"}
    assert given.get_as_bool("flag") is True


def test_a_timeout_of_the_user_is_kept(manager) -> None:
    assert create(manager, timeout="5")._handler.params.config["timeout"] == "5"


def test_the_backends_name_comes_without_the_distribution(manager) -> None:
    handler = create(manager, "acme-torchrun:acme")
    assert handler._handler.params.backend == handler.get_backend() == "acme"


def test_leaving_does_not_close_the_rendezvous_for_the_others_but_closing_does(manager) -> None:
    handler = create(manager)
    assert handler.leave() is True
    assert handler.is_closed() is False
    handler.set_closed()
    assert handler.is_closed() is True
    # It returns None, which torchrun ignores too.
    assert create(manager).shutdown() is True


@pytest.mark.parametrize("kind", ["Closed", "Connection", "", "GracefulExit", "State", "Timeout"])
def test_torchs_exceptions_are_converted(manager, kind) -> None:
    error = getattr(errors, f"Rendezvous{kind}Error")
    handler = create(manager, fail_with=error.__name__)
    with pytest.raises(error, match=r"'acme' \(distribution acme-torchrun 1\.2.*acme says no") as e:
        handler.next_rendezvous()
    assert type(e.value) is error
    assert type(e.value.__cause__).__module__.startswith("torch.")


def test_other_exceptions_pass_unchanged(manager) -> None:
    handler = create(manager, fail_with="nothing like it")
    with pytest.raises(KeyError):
        handler.next_rendezvous()


def test_parameters_that_it_refuses_are_a_usage_error(manager) -> None:
    with pytest.raises(UsageError, match=r"'acme' .* does not accept its parameters.*'waiting'"):
        create(manager, waiting="many")


def test_a_handler_of_another_name_is_refused_as_torchrun_does(manager) -> None:
    with pytest.raises(PluginError, match="is named 'other'"):
        create(manager, backend_name="other")


@pytest.fixture
def offered(site):
    """The backend `x` of a package with such a module, in torchrun's group."""

    def offered(source, value="mod:get"):
        site.install("acme", {"torchrun.handlers": {"x": value}}, mod=source)
        return site.manager().get(RENDEZVOUS, "x")

    return offered


CREATORS = {
    "a creator that cannot be made": (
        "def get(): raise ImportError('no driver')",
        "ImportError: no driver",
    ),
    "no creator": ("def get(): pass", "returned None"),
    "not callable": ("get = 3", "TypeError"),
}


@pytest.mark.parametrize(("source", "words"), CREATORS.values(), ids=CREATORS)
def test_a_broken_creator(offered, source, words) -> None:
    with pytest.raises(PluginLoadError, match=words):
        offered(source)


def test_a_round_without_a_store_address_is_the_plugins_fault(offered) -> None:
    create = offered("""
        class Handler:
            def get_backend(self): return "x"
            def next_rendezvous(self): return ("store", 0, 1)
        def get(): return lambda params: Handler()
    """)
    with pytest.raises(PluginError, match=r"'x' .* returned \('store', 0, 1\)"):
        create(params()).next_rendezvous()


def test_a_handler_of_plaunch_is_not_adapted(offered) -> None:
    create = offered("""
        from plaunch.testing import FakeRendezvous
        def get(): return lambda params: FakeRendezvous()
    """)
    assert type(create(params())).__name__ == "FakeRendezvous"


def test_a_module_of_hooks_in_torchruns_group_provides_backends(offered) -> None:
    source = """
        from plaunch.plugin import hookimpl
        @hookimpl
        def plaunch_rendezvous_backends(): return {"x": len}
    """
    assert offered(source, "mod") is len


# --- both, from the command line ------------------------------------------------------------------


@pytest.mark.slow
def test_both_work_from_the_command_line(tmp_path) -> None:
    script = tmp_path / "show.py"
    script.write_text(
        "import os\n"
        "names = ('RANK', 'WORLD_SIZE', 'GROUP_RANK', 'MASTER_ADDR', 'MASTER_PORT')\n"
        "print(*(os.environ[name] for name in names))\n"
    )
    logs = tmp_path / "logs"
    command = ["-m", "plaunch", "--nproc-per-node=2"]
    command += ["--rdzv-backend=acme", "--rdzv-endpoint=127.0.0.1:23456", "--rdzv-id=job"]
    command += ["--rdzv-conf=rank=0,anything=else"]
    command += ["--logs-specs=acme-flat", f"--log-dir={logs}", "--redirects=1", str(script)]
    environ = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    run_python(*command, env=environ, check=True, cwd=tmp_path)
    shown = [(logs / f"{rank}.out").read_text().split() for rank in (0, 1)]
    assert shown == [[rank, "2", "0", "127.0.0.1", "23456"] for rank in "01"]


# As packages for torchrun begin: they are the first to import torch's rendezvous package, which
# imports all packages of its group.
HANDLERS = """
from torch.distributed.elastic.rendezvous import RendezvousHandler
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
def get(): return lambda params: None
"""
SELECTED = """
from plaunch.plugin import RENDEZVOUS, PluginManager
PluginManager.create().get(RENDEZVOUS, "acme")
"""


@pytest.mark.slow
def test_torch_imports_the_packages_of_its_group_first(site) -> None:
    site.install("acme", {"torchrun.handlers": {"acme": "mod:get"}}, mod=HANDLERS)
    environ = {**os.environ, "PYTHONPATH": str(site.folder)}
    done = run_python("-c", SELECTED, env=environ, check=True)
    assert "Traceback" not in done.stderr
