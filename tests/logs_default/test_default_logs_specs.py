from __future__ import annotations

import json
import logging
import os
import stat
import warnings

import pytest
from plaunch.errors import LogDirectoryError, UsageError
from plaunch.process import LogsDest, LogsSpecs, Std
from plaunch_logs_default import DefaultLogsSpecs

from helpers.programs import run_python


def make_envs(nprocs, run_id="exp7", restarts=0):
    return {
        rank: {"TORCHELASTIC_RUN_ID": run_id, "TORCHELASTIC_RESTART_COUNT": str(restarts)}
        for rank in range(nprocs)
    }


def tree(folder):
    """All files and folders below `folder`, without random suffixes."""
    found = []
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            relative = os.path.relpath(os.path.join(parent, name), folder)
            run, *rest = relative.split(os.sep)
            found.append("/".join([run.rpartition("_")[0], *rest]))
    return sorted(found)


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """An empty place for temporary folders."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture
def only_user(monkeypatch):
    """Permission checks as for a user who is not root."""

    def access(path, mode):
        writable = bool(os.stat(path).st_mode & stat.S_IWUSR)
        return writable or not mode & os.W_OK

    monkeypatch.setattr(os, "access", access)


# --- the layout -----------------------------------------------------------------------------------


def test_every_stream_of_every_rank(tmp_path):
    redirects = {0: Std.OUT, 1: Std.ALL, 2: Std.NONE, 3: Std.NONE}
    tee = {0: Std.ERR, 1: Std.OUT, 2: Std.ALL}
    specs = DefaultLogsSpecs(str(tmp_path), redirects, tee)
    envs = make_envs(4)
    dest = specs.reify(envs)
    (run,) = tmp_path.iterdir()
    assert run.name.startswith("exp7_")
    attempt = f"{run}/attempt_0"

    def logs(name, *ranks):
        return {rank: f"{attempt}/{rank}/{name}" for rank in ranks}

    assert isinstance(specs, LogsSpecs)
    assert dest == LogsDest(
        stdouts={**logs("stdout.log", 0, 1, 2), 3: ""},
        stderrs={**logs("stderr.log", 0, 1, 2), 3: ""},
        tee_stdouts=logs("stdout.log", 1, 2),
        tee_stderrs=logs("stderr.log", 0, 2),
        error_files=logs("error.json", 0, 1, 2, 3),
        filtered_stdout=f"{attempt}/filtered_stdout.log",
        filtered_stderr=f"{attempt}/filtered_stderr.log",
    )
    for rank in range(4):
        assert envs[rank]["TORCHELASTIC_ERROR_FILE"] == f"{attempt}/{rank}/error.json"
        assert os.path.isdir(f"{attempt}/{rank}")


def test_the_paths_are_those_of_torch(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = pytest.importorskip("torch.distributed.elastic.multiprocessing")
    cases = [
        (Std.NONE, Std.NONE, None),
        (Std.ALL, Std.NONE, None),
        (Std.NONE, Std.ALL, {0, 2}),
        ({0: Std.OUT}, {0: Std.ERR, 2: Std.OUT}, {1}),
        (Std.ERR, {1: Std.ALL}, set()),
    ]
    for number, (redirects, tee, shown) in enumerate(cases):
        paths = []
        for make, to_std in ((DefaultLogsSpecs, Std), (theirs.DefaultLogsSpecs, theirs.Std)):
            base = tmp_path / f"{number}_{make.__module__}"
            converted = [
                {rank: to_std(int(std)) for rank, std in setting.items()}
                if isinstance(setting, dict)
                else to_std(int(setting))
                for setting in (redirects, tee)
            ]
            specs = make(str(base), *converted, shown)
            envs = make_envs(3)
            dest = specs.reify(envs)
            (run,) = base.iterdir()
            assert run.name.startswith("exp7_")
            paths.append(json.loads(json.dumps((vars(dest), envs)).replace(str(run), "RUN")))
        # Older versions of torch have no files of filtered lines.
        files = {name: paths[0][0][name] for name in paths[1][0]}
        assert [files, paths[0][1]] == paths[1]


def test_a_setting_without_a_map_is_for_all_ranks(tmp_path):
    dest = DefaultLogsSpecs(str(tmp_path), redirects=Std.ERR).reify(make_envs(12))
    assert all(dest.stderrs[rank].endswith(f"/{rank}/stderr.log") for rank in range(12))
    assert set(dest.stdouts.values()) == {""}


def test_a_map_may_name_ranks_of_any_number_of_digits_and_ranks_of_larger_nodes(tmp_path):
    specs = DefaultLogsSpecs(str(tmp_path), redirects={10: Std.OUT, 100: Std.OUT})
    dest = specs.reify(make_envs(11))
    assert dest.stdouts[10].endswith("/10/stdout.log")
    assert set(dest.stdouts) == set(range(11))


@pytest.mark.parametrize("envs", [{0: {}, 1: {}}, {0: {"TORCHELASTIC_RUN_ID": ""}}])
def test_variables_may_be_missing(tmp_path, envs):
    DefaultLogsSpecs(str(tmp_path)).reify(envs)
    assert tree(tmp_path)[:2] == ["run", "run/attempt_0"]


def test_the_environment_keeps_its_other_variables(tmp_path):
    envs = {0: {"RANK": "3"}}
    DefaultLogsSpecs(str(tmp_path)).reify(envs)
    assert set(envs[0]) == {"RANK", "TORCHELASTIC_ERROR_FILE"}


# --- folders are never reused ---------------------------------------------------------------------


def test_every_start_has_its_own_folder(tmp_path):
    specs = DefaultLogsSpecs(str(tmp_path), redirects=Std.OUT)
    for restarts in (0, 0, 0, 1, 1, 10):
        dest = specs.reify(make_envs(1, restarts=restarts))
        with open(dest.stdouts[0], "x") as file:
            file.write("kept")
    specs.close(succeeded=True)
    assert [entry for entry in tree(tmp_path) if entry.count("/") == 1] == [
        "exp7/attempt_0",
        "exp7/attempt_0.1",
        "exp7/attempt_0.2",
        "exp7/attempt_1",
        "exp7/attempt_1.1",
        "exp7/attempt_10",
    ]
    assert len([entry for entry in tree(tmp_path) if entry.endswith("stdout.log")]) == 6


def test_agents_can_share_a_directory(tmp_path):
    agents = [DefaultLogsSpecs(str(tmp_path)) for _ in range(20)]
    files = {agent.reify(make_envs(1)).error_files[0] for agent in agents}
    assert len(files) == 20
    assert len(list(tmp_path.iterdir())) == 20


def test_a_taken_name_is_not_used(tmp_path, monkeypatch):
    numbers = iter([b"\0\0\0\1", b"\0\0\0\1", b"\0\0\0\2"])
    monkeypatch.setattr(os, "urandom", lambda _count: next(numbers))
    for _ in range(2):
        DefaultLogsSpecs(str(tmp_path)).reify(make_envs(1))
    assert sorted(os.listdir(tmp_path)) == ["exp7_00000001", "exp7_00000002"]


@pytest.mark.parametrize(
    ("run_id", "name"),
    [
        ("exp-7.b_2@x+y=z", "exp-7.b_2@x+y=z"),
        ("../../etc/passwd", "_._.._etc_passwd"),
        ("/abs/olute", "_abs_olute"),
        ("..", "_."),
        (".hidden", "_hidden"),
        ("two words\nand\0more", "two_words_and_more"),
        ("ünï", "_n_"),
        ("a" * 500, "a" * 120),
    ],
)
def test_a_run_id_cannot_leave_the_directory(tmp_path, run_id, name):
    base = tmp_path / "logs"
    dest = DefaultLogsSpecs(str(base)).reify(make_envs(1, run_id=run_id))
    (run,) = base.iterdir()
    assert run.name.rpartition("_")[0] == name
    assert os.path.realpath(dest.error_files[0]).startswith(f"{run}{os.sep}")
    assert os.listdir(tmp_path) == ["logs"]


# --- the directory that the user gave -------------------------------------------------------------


def test_nothing_is_created_before_the_first_start_of_workers(tmp_path):
    specs = DefaultLogsSpecs(tmp_path / "deep" / "er")
    specs.close(succeeded=True)
    assert specs.reify({}) == LogsDest()
    assert list(tmp_path.iterdir()) == []
    specs.reify(make_envs(1))
    assert specs.root_log_dir == str(tmp_path / "deep" / "er")
    assert os.path.isdir(tmp_path / "deep" / "er")


def test_a_relative_directory_gives_absolute_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    specs = DefaultLogsSpecs("logs", tee=Std.OUT)
    dest = specs.reify(make_envs(1))
    assert specs.root_log_dir == "logs"
    for path in (dest.stdouts[0], dest.error_files[0], dest.filtered_stdout):
        assert path.startswith(f"{tmp_path}/logs/")


def test_a_path_that_is_not_a_directory_is_rejected_early(tmp_path):
    file = tmp_path / "logs"
    file.touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    for given, what in (
        (file, "it is a file"),
        (file / "below", f"{str(file)!r} is a file"),
        (tmp_path / "link", "it is not a directory"),
        (tmp_path / "pipe", "it is not a directory"),
    ):
        with pytest.raises(LogDirectoryError) as caught:
            DefaultLogsSpecs(str(given))
        assert str(caught.value) == (
            f"log directory {str(given)!r} cannot be used: {what}; choose another one"
        )
        assert isinstance(caught.value, NotADirectoryError)
        assert isinstance(caught.value, UsageError)


def test_an_unwritable_directory_is_rejected_early(tmp_path, only_user):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    for given in (locked, locked / "below" / "it"):
        with pytest.raises(LogDirectoryError) as caught:
            DefaultLogsSpecs(str(given))
        assert f"{str(locked)!r} is not writable for this user" in str(caught.value)
        assert repr(str(given)) in str(caught.value)


def test_a_directory_that_becomes_unwritable(tmp_path):
    specs = DefaultLogsSpecs(str(tmp_path / "logs"))
    (tmp_path / "logs").touch()
    with pytest.raises(LogDirectoryError, match=r"logs' cannot be created on "):
        specs.reify(make_envs(1))


def test_a_deleted_run_folder_is_reported(tmp_path):
    specs = DefaultLogsSpecs(str(tmp_path))
    specs.reify(make_envs(1))
    (run,) = tmp_path.iterdir()
    run.rename(tmp_path / "elsewhere")
    with pytest.raises(LogDirectoryError, match=r"log folder .* cannot be created"):
        specs.reify(make_envs(1, restarts=1))


@pytest.mark.parametrize("succeeded", [True, False])
def test_close_keeps_a_given_directory(tmp_path, succeeded):
    specs = DefaultLogsSpecs(str(tmp_path))
    specs.reify(make_envs(1))
    before = tree(tmp_path)
    specs.close(succeeded)
    assert tree(tmp_path) == before


# --- no directory ---------------------------------------------------------------------------------


@pytest.mark.parametrize("log_dir", [None, ""])
@pytest.mark.parametrize("succeeded", [True, False])
def test_error_files_alone_are_temporary(scratch, log_dir, succeeded):
    specs = DefaultLogsSpecs(log_dir)
    assert specs.root_log_dir is None
    dest = specs.reify(make_envs(2))
    (folder,) = scratch.iterdir()
    assert specs.root_log_dir == str(folder)
    assert folder.name.startswith("plaunch_exp7_")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert set(dest.stdouts.values()) | set(dest.stderrs.values()) == {""}
    with open(dest.error_files[1], "w") as file:
        file.write("{}")
    (folder / "core").mkdir()
    (folder / "link").symlink_to("/")
    (folder / "core" / "dump").touch()
    specs.close(succeeded)
    specs.close(succeeded)
    assert list(scratch.iterdir()) == []
    assert os.path.isdir("/")


def test_requested_logs_stay_and_their_path_is_logged_once(scratch, caplog):
    specs = DefaultLogsSpecs(tee={0: Std.OUT})
    for restarts in range(3):
        specs.reify(make_envs(1, restarts=restarts))
    specs.close(succeeded=True)
    (folder,) = scratch.iterdir()
    assert caplog.record_tuples == [
        ("plaunch", logging.WARNING, f"no log directory was given; logs are written to {folder}")
    ]
    assert specs.root_log_dir == str(folder)


def test_logs_requested_for_other_nodes_only(scratch, caplog):
    specs = DefaultLogsSpecs(redirects={7: Std.ALL}, tee={0: Std.NONE}, local_ranks_filter=set())
    specs.close(succeeded=True)  # nothing exists yet
    assert list(scratch.iterdir()) == []
    assert specs.reify(make_envs(2)).stdouts == {0: "", 1: ""}, "the empty filter hides them"
    specs.close(succeeded=True)
    assert list(scratch.iterdir()) == []
    assert caplog.records == []


def test_a_temporary_folder_that_cannot_be_removed_is_logged(scratch, monkeypatch, caplog):
    specs = DefaultLogsSpecs()
    specs.reify(make_envs(1))

    def refuse(_path):
        raise OSError("busy")

    monkeypatch.setattr(os, "rmdir", refuse)
    specs.close(succeeded=True)
    assert "cannot be removed: busy" in caplog.text


def test_no_error_files_without_a_writable_temporary_directory(monkeypatch, caplog, tmp_path):
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    envs = make_envs(1)
    specs = DefaultLogsSpecs()
    dest = specs.reify(envs)
    assert dest.error_files == {0: os.devnull}
    assert envs[0]["TORCHELASTIC_ERROR_FILE"] == ""
    assert "workers get no error files" in caplog.text
    assert "set TMPDIR" in caplog.text
    specs.close(succeeded=True)
    with pytest.raises(LogDirectoryError, match="set TMPDIR"):
        DefaultLogsSpecs(redirects=Std.OUT).reify(make_envs(1))


# --- no files -------------------------------------------------------------------------------------


def test_the_null_device_means_no_files(scratch, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    specs = DefaultLogsSpecs(os.devnull, redirects=Std.ALL, tee={1: Std.OUT})
    assert specs.root_log_dir is None
    envs = make_envs(2)
    assert specs.reify(envs) == LogsDest(
        stdouts={0: "", 1: ""},
        stderrs={0: "", 1: ""},
        tee_stdouts={1: os.devnull},
        error_files={0: os.devnull, 1: os.devnull},
    )
    assert [env["TORCHELASTIC_ERROR_FILE"] for env in envs.values()] == ["", ""]
    specs.close(succeeded=True)
    assert os.listdir(tmp_path) == ["scratch"]
    assert list(scratch.iterdir()) == []


# --- the local-rank filter ------------------------------------------------------------------------


def test_other_ranks_are_not_shown(tmp_path):
    tee = {0: Std.OUT, 1: Std.OUT}
    specs = DefaultLogsSpecs(str(tmp_path), redirects={1: Std.OUT}, tee=tee, local_ranks_filter={0})
    dest = specs.reify(make_envs(2))
    assert set(dest.tee_stdouts) == {0}
    assert dest.stdouts[1].endswith("/1/stdout.log")
    assert dest.stderrs == {0: "", 1: os.devnull}


def test_other_ranks_are_not_shown_without_files_either():
    specs = DefaultLogsSpecs(os.devnull, tee=Std.ALL, local_ranks_filter={1})
    dest = specs.reify(make_envs(2))
    assert dest.stdouts == dest.stderrs == {0: os.devnull, 1: ""}
    assert dest.tee_stdouts == dest.tee_stderrs == {1: os.devnull}


# --- the object -----------------------------------------------------------------------------------


def test_repr_names_all_settings():
    specs = DefaultLogsSpecs("/tmp", Std.OUT, {0: Std.ERR}, {1})
    assert repr(specs) == (
        f"DefaultLogsSpecs(root_log_dir=/tmp, redirects={Std.OUT}, tee={{0: {Std.ERR!r}}}, "
        "local_ranks_filter={1})"
    )


def test_equal_settings_are_equal(tmp_path):
    one, other = DefaultLogsSpecs(str(tmp_path), Std.OUT), DefaultLogsSpecs(str(tmp_path), Std.OUT)
    one.reify(make_envs(1))
    assert one == other
    for different in (
        DefaultLogsSpecs(None, Std.OUT),
        DefaultLogsSpecs(str(tmp_path), Std.ERR),
        DefaultLogsSpecs(str(tmp_path), Std.OUT, Std.OUT),
        DefaultLogsSpecs(str(tmp_path), Std.OUT, Std.NONE, {0}),
    ):
        assert one != different
    assert one != "DefaultLogsSpecs"


def test_choosing_the_default_imports_little():
    code = (
        "import sys; before = set(sys.modules)\n"
        "import plaunch_logs_default, os\n"
        "specs = plaunch_logs_default.DefaultLogsSpecs()\n"
        "specs.reify({0: {}}); specs.close(True)\n"
        "print(sorted({'torch', 'json', 'shutil', 'tempfile', 'pluggy'}"
        " & (set(sys.modules) - before)))"
    )
    assert run_python("-c", code, check=True).stdout == "[]\n"


def test_create_run_dir_works_before_workers_start(tmp_path):
    specs = DefaultLogsSpecs(str(tmp_path / "logs"))
    folder = specs.create_run_dir("exp7")
    assert os.listdir(tmp_path / "logs") == [os.path.basename(folder)]
    assert specs.create_run_dir("exp7") == folder
    specs.reify(make_envs(1))
    assert tree(tmp_path / "logs") == ["exp7", "exp7/attempt_0", "exp7/attempt_0/0"]


@pytest.mark.parametrize("log_dir", [None, os.devnull])
def test_no_run_dir_without_a_log_dir(log_dir, scratch):
    assert DefaultLogsSpecs(log_dir).create_run_dir("exp7") is None
    assert os.listdir(scratch) == []
