"""Whose a file is, by its path and by those of the same traceback."""

from __future__ import annotations

import json
import os
import sysconfig

import pytest
from plaunch.process.failures.source_files import SourceFiles

from helpers.tracebacks import TORCH


@pytest.mark.parametrize(
    "path",
    [
        "/home/me/train.py",
        "train.py",
        "/opt/lib/train.py",
        "/home/me/torch/train.py",
        "/home/me/models/torch/nn/my.py",
        "/home/me/proj/torch/utils/data.py",
        "/home/me/python3.11/train.py",
        "/opt/app/lib/python3.11/mytrain/train.py",
        "/opt/app/lib/python3.11/code-of-mine/train.py",
        "<string>",
        "/tmp/ipykernel_7/1.py",
    ],
)
def test_files_of_the_user(path) -> None:
    assert SourceFiles([path, TORCH]).is_own(path)


@pytest.mark.parametrize(
    "path",
    [
        TORCH,
        json.__file__,
        os.path.join(sysconfig.get_path("purelib"), "lightning", "loop.py"),
        "/usr/lib/python3/dist-packages/numpy/core.py",
        "/home/me/.pyenv/versions/3.13.1/lib/python3.13t/threading.py",
        "/opt/conda/lib/python3.12/site-packages/a.py",
        "/usr/lib/python312.zip/json/decoder.py",
        "<frozen importlib._bootstrap>",
        "/home/me/pytorch/torch/distributed/distributed_c10d.py",
        "/home/me/pytorch/torch/_dynamo/eval_frame.py",
        "<eval_with_key>.12",
    ],
)
def test_files_of_python_of_packages_and_of_torch(path) -> None:
    assert not SourceFiles([path]).is_own(path)


def test_torch_used_from_its_sources_is_known_by_another_file() -> None:
    linear = "/src/torch/nn/linear.py"
    assert SourceFiles([linear, "/src/torch/nn/modules/module.py"]).is_torch(linear)
    assert not SourceFiles([linear, "/other/torch/nn/modules/module.py"]).is_torch(linear)
