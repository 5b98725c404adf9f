from __future__ import annotations

import os

import pytest
from plaunch.errors import LogDirectoryError
from plaunch.process import Std
from plaunch_example_plugins.logs import FlatLogsSpecs

ENVS = {0: {"RANK": "2", "PLAUNCH_ROUND": "1"}, 1: {"RANK": "3", "PLAUNCH_ROUND": "1"}}


def envs():
    return {rank: dict(env) for rank, env in ENVS.items()}


def test_files_are_named_by_start_and_global_rank(tmp_path):
    folder = str(tmp_path / "logs")
    workers = envs()
    dest = FlatLogsSpecs(log_dir=folder).reify(workers)
    assert dest.stdouts == {0: f"{folder}/1-rank00002.out", 1: f"{folder}/1-rank00003.out"}
    assert dest.stderrs == {0: f"{folder}/1-rank00002.err", 1: f"{folder}/1-rank00003.err"}
    assert workers[1]["TORCHELASTIC_ERROR_FILE"] == f"{folder}/1-rank00003.error.json"
    assert dest.tee_stdouts == dest.tee_stderrs == {}
    assert os.path.isdir(folder)


def test_tee_and_filter_choose_what_is_shown(tmp_path):
    specs = FlatLogsSpecs(
        log_dir=str(tmp_path), tee={0: Std.ALL, 1: Std.ALL}, local_ranks_filter={1}
    )
    dest = specs.reify(envs())
    assert list(dest.tee_stdouts) == list(dest.tee_stderrs) == [1]
    assert dest.tee_stdouts[1] == dest.stdouts[1]


@pytest.mark.parametrize("log_dir", [None, os.devnull])
def test_without_a_folder_there_are_no_files(log_dir):
    specs = FlatLogsSpecs(log_dir=log_dir)
    dest = specs.reify(envs())
    assert specs.root_log_dir is None
    assert dest.stdouts == dest.stderrs == dest.error_files == {0: "", 1: ""}


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LogDirectoryError, match="file/logs' cannot be made"):
        FlatLogsSpecs(log_dir=str(tmp_path / "file" / "logs")).reify(envs())
