"""The packages in the table of docs/preload.md, if they are installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from helpers.programs import run_python

sys.path.insert(0, str(Path(__file__).parents[2] / "tools/docs"))
try:
    import preload_packages as table
finally:
    del sys.path[0]

MODULES = [
    pytest.param(distribution, module, id=module)
    for distribution, modules in table.MODULES.items()
    for module in modules
]


def test_the_table_has_no_other_modules():
    assert table.read_rows().keys() <= {one.id for one in MODULES}


@pytest.mark.exhaustive
@pytest.mark.parametrize(("distribution", "module"), MODULES)
def test_a_package_can_be_preloaded_as_in_the_table(tmp_path, distribution, module):
    if not table.version_of(distribution):
        pytest.skip(f"{distribution} is not installed")
    result = table.read_rows().get(module, table.WORKS)
    if result != table.WORKS:
        assert table.describe(module) == result
        return
    script = tmp_path / "train.py"
    script.write_text(
        f"import sys; early = {module!r} in sys.modules\nimport {module}; print(early)\n"
    )
    launch = ["-m", "plaunch", "--nproc-per-node=2", f"--preload={module}", script]
    done = run_python(*launch, timeout=table.BOUND, cwd=tmp_path)
    # Lines of two workers may be interleaved.
    assert (done.returncode, done.stdout.count("True")) == (0, 2), done.stderr
