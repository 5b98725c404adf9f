"""`NodeFiles` writes the output of each node to a file."""

import os

import pytest
from plaunch.errors import UsageError
from plaunch_engines.node_files import NodeFiles, folder_of
from plaunch_engines.output import MergedOutput

from helpers.waiting import wait_until


@pytest.fixture
def output():
    return MergedOutput(lambda text, level: f"{level} {text}")


def finish(output, files):
    output.request_end()
    wait_until(output.is_written, "the files are written")
    files.close()


def test_the_streams_of_nodes_as_they_arrive(tmp_path, output):
    folder = folder_of(str(tmp_path / "out"), "job")
    files = NodeFiles(folder, output)
    files.write("[fd00::5]:22", b"a\nb", is_error=False)
    files.write("../x", b"one\n", is_error=True)
    files.write("[fd00::5]:22", b"c\n", is_error=False)
    files.write("[fd00::5]:22", b"half", is_error=True)
    files.write("[fd00::5]:22", b"d\n", is_error=False)
    files.write("[fd00::5]:22", b"e\n", is_error=True)
    finish(output, files)
    found = {name: (tmp_path / "out/job" / name).read_text() for name in os.listdir(folder)}
    assert found == {"[fd00::5]:22.log": "a\nbc\nhalf\nd\ne\n", "_.._x.log": "one\n"}


def test_a_job_without_output_leaves_no_folder(tmp_path, output):
    files = NodeFiles(folder_of(str(tmp_path), "a/b"), output)
    assert os.listdir(tmp_path) == ["a_b"]
    finish(output, files)
    assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_created(tmp_path, output):
    (tmp_path / "file").touch()
    with pytest.raises(
        UsageError, match=r"--node-output: the folder .*/file/job cannot be created"
    ):
        NodeFiles(folder_of(str(tmp_path / "file"), "job"), output)


def test_a_file_that_cannot_be_opened(tmp_path, output, capfd):
    (tmp_path / "job/node1.log").mkdir(parents=True)
    files = NodeFiles(folder_of(str(tmp_path), "job"), output)
    for _ in range(2):
        files.write("node1", b"a\n", is_error=False)
    finish(output, files)
    message = f"WARNING {tmp_path}/job/node1.log cannot be written: Is a directory; the output of"
    assert capfd.readouterr().err.count(message) == 1


def test_what_does_not_fit_is_counted(tmp_path, output):
    (tmp_path / "job").mkdir()
    (tmp_path / "job/node1.log").symlink_to("/dev/full")
    files = NodeFiles(folder_of(str(tmp_path), "job"), output)
    for _ in range(3):
        files.write("node1", b"lost\n", is_error=False)
    finish(output, files)
    [loss] = output.losses()
    assert loss.cause == f"{tmp_path}/job/node1.log: No space left on device"
    assert (loss.size, loss.lines) == (15, 3)
