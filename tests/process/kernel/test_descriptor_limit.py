"""The launcher may open more files than its workers."""

from __future__ import annotations

import pytest

from helpers.programs import run_python

LAUNCHER = """
import resource, sys
from plaunch.process import raise_descriptor_limit, start_processes
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
def work():
    import time
    time.sleep(0.3)  # the launcher is told its pid only when it has begun
    return resource.getrlimit(resource.RLIMIT_NOFILE) == (hard // 2, hard)
TEXT = "import resource, time; time.sleep(0.3); print(resource.getrlimit(resource.RLIMIT_NOFILE))"
if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard // 2, hard))
    assert raise_descriptor_limit() == hard
    assert raise_descriptor_limit() == hard  # again
    if sys.argv[1] == "program":
        context = start_processes("w", sys.executable, {0: ("-c", TEXT)})
        context.wait()
        print((hard // 2, hard))
    else:
        context = start_processes("w", work, {0: ()}, start_method=sys.argv[1])
        print(context.wait().return_values)
"""


@pytest.mark.parametrize("kind", ["program", "spawn", "fork", "forkserver"])
def test_workers_get_the_limit_as_it_was(tmp_path, kind):
    script = tmp_path / "launcher.py"
    script.write_text(LAUNCHER)
    said = run_python(script, kind, check=True, cwd=tmp_path, timeout=100).stdout.splitlines()
    if kind == "program":
        worker, expected = said
        assert worker == expected
    else:
        assert said == ["{0: True}"]
