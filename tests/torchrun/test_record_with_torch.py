"""Error files, written by torch and read by plaunch, and vice versa."""

from __future__ import annotations

import dataclasses
import json
import warnings

import pytest
from plaunch.process import ChildFailedError, ProcessFailure
from plaunch_torchrun.error_handler import ErrorHandler, dump_root_cause, record


@pytest.fixture(scope="module")
def torch_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("torch.distributed.elastic.multiprocessing.errors")


def fail():
    raise ValueError("bad shape")


def test_torchs_record_is_read_here(torch_errors, error_file):
    with pytest.raises(ValueError, match="bad shape"):
        torch_errors.record(fail)()
    of_plaunch = ProcessFailure(0, 42, 1, str(error_file))
    their_view = torch_errors.ProcessFailure(0, 42, 1, str(error_file))
    assert of_plaunch.has_reply
    assert of_plaunch.message == their_view.message
    assert of_plaunch.error_file_data == their_view.error_file_data
    assert 0 <= of_plaunch.timestamp - their_view.timestamp < 2
    report = str(ChildFailedError("train.py", {0: of_plaunch}))
    assert "    ValueError: bad shape" in report
    assert "in fail" in report


def test_torch_reads_what_record_wrote(torch_errors, error_file):
    with pytest.raises(ValueError, match="bad shape"):
        record(fail)()
    failure = torch_errors.ProcessFailure(0, 42, 1, str(error_file))
    assert failure.message["message"] == "ValueError: bad shape"
    assert failure.timestamp == int(ProcessFailure(0, 42, 1, str(error_file)).timestamp)
    assert "in fail" in str(torch_errors.ChildFailedError("train.py", {0: failure}))


def test_both_write_the_same_fields(torch_errors, error_file):
    def fields(decorate):
        with pytest.raises(ValueError, match="bad shape"):
            decorate(fail)()
        message = json.loads(error_file.read_text())["message"]
        return message["message"], set(message), set(message["extraInfo"])

    text, outer, inner = fields(torch_errors.record)
    assert fields(record) == (text, outer, inner | {"timestamp_ns"})


@pytest.mark.parametrize("has_file", [True, False])
def test_torch_reads_a_copied_root_cause(torch_errors, error_file, child_file, has_file):
    data = {"message": {"message": "E: x", "extraInfo": {"timestamp": "1700000000"}}}
    child = child_file(data) if has_file else "/no/such/file"
    failure = ProcessFailure(0, 42, -9, child, last_lines=["the end"])
    dump_root_cause(ChildFailedError("train.py", {0: failure}))
    read = torch_errors.ProcessFailure(0, 42, 1, str(error_file))
    assert read.message["errorCode"] == -9
    assert read.timestamp == int(failure.timestamp)


def test_torchs_handler_copies_plaunchs_file(torch_errors, error_file, tmp_path):
    child = tmp_path / "child.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHELASTIC_ERROR_FILE", str(child))
        ErrorHandler().record_exception(ValueError("deep"))
    torch_errors.ErrorHandler().dump_error_file(str(child), 17)
    assert ProcessFailure(0, 1, 17, str(error_file)).message["errorCode"] == 17


def test_plaunchs_record_accepts_torchs_handler(torch_errors, error_file):
    with pytest.raises(ValueError, match="bad shape"):
        record(fail, torch_errors.ErrorHandler())()
    assert ProcessFailure(0, 1, 1, str(error_file)).message["message"] == "ValueError: bad shape"

    def main():
        raise ChildFailedError("nested.py", {0: ProcessFailure(0, 42, 3, "")})

    with pytest.raises(ChildFailedError):
        record(main, torch_errors.ErrorHandler())()
    assert ProcessFailure(0, 1, 1, str(error_file)).message["errorCode"] == 3


def test_the_fields_of_a_failure_have_torchs_names_and_order(torch_errors, tmp_path):
    of_plaunch = ProcessFailure(1, 42, -11, str(tmp_path / "no"))
    their_view = torch_errors.ProcessFailure(1, 42, -11, str(tmp_path / "no"))
    names = [field.name for field in dataclasses.fields(their_view)]
    assert [field.name for field in dataclasses.fields(of_plaunch)][: len(names)] == names
    for name in ("local_rank", "pid", "exitcode", "error_file", "message"):
        assert getattr(of_plaunch, name) == getattr(their_view, name)
    assert of_plaunch.signal_name() == their_view.signal_name()
