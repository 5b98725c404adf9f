"""Finding the program of `python -m plaunch_torchrun NAME`, also if distributions share a name."""

from __future__ import annotations

import os
import sys
import sysconfig

import pytest
from plaunch.errors import UsageError
from plaunch_torchrun.programs import find_program

from helpers.programs import run_python

# As pip, uv and conda write it; as setuptools did; and for an interpreter with a long path.
WRAPPERS = {
    "pip": "#!{python}\nimport sys\nfrom {module} import main\nif __name__ == '__main__':\n"
    "    sys.exit(main())\n",
    "setuptools": "#!{python}\n"
    "# EASY-INSTALL-ENTRY-SCRIPT: '{dist}==1.0','console_scripts','acme-tune'\n"
    "import re, sys\nfrom importlib.metadata import distribution\n",
    "distlib": "#!/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n' '''\nimport sys\n"
    "from {module} import main\nsys.exit(main())\n",
}
RAY, TORCHTUNE = ("ray", "ray_tune.cli"), ("torchtune", "torchtune_cli.tune")


class Site:
    """A folder of distributions, and one of programs."""

    def __init__(self, folder, monkeypatch):
        self.site, self.bin = folder / "site", folder / "bin"
        self.bin.mkdir()
        monkeypatch.syspath_prepend(str(self.site))
        monkeypatch.setenv("PATH", str(self.bin))
        self.environ = {**os.environ, "PYTHONPATH": str(self.site)}

    def install(self, dist, module):
        package, _, name = module.partition(".")
        (self.site / package).mkdir(parents=True)
        (self.site / package / "__init__.py").touch()
        code = f"import sys\ndef main():\n    print('{dist}', *sys.argv[1:])\n"
        (self.site / package / f"{name}.py").write_text(code)
        info = self.site / f"{dist}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[console_scripts]\nacme-tune = {module}:main\n")

    def write(self, text, mode=0o755):
        """Have this program on PATH."""
        path = self.bin / "acme-tune"
        path.write_text(text)
        path.chmod(mode)
        return str(path)

    def wrap(self, dist, module, form="pip"):
        return self.write(WRAPPERS[form].format(python=sys.executable, dist=dist, module=module))


@pytest.fixture
def site(tmp_path, monkeypatch):
    return Site(tmp_path, monkeypatch)


@pytest.fixture
def both(site):
    site.install(*RAY)
    site.install(*TORCHTUNE)
    return site


@pytest.mark.parametrize("form", WRAPPERS)
@pytest.mark.parametrize("owner", [RAY, TORCHTUNE], ids=["ray", "torchtune"])
def test_path_decides(both, owner, form):
    path = both.wrap(*owner, form)
    program = find_program("acme-tune")
    assert (program.entry_point.module, program.path) == (owner[1], path)


def test_several_that_are_not_on_path_are_refused(both):
    with pytest.raises(UsageError) as caught:
        find_program("acme-tune")
    assert str(caught.value) == (
        "'acme-tune' is a program of several packages installed with "
        f"{sys.executable}: ray 1.0 (ray_tune.cli:main), torchtune 1.0 (torchtune_cli.tune:main); "
        "put the folder of the one to run on PATH, or write -m with its module"
    )


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("#!/bin/sh\nexec pyenv exec acme-tune\n", 0o755),
        ("\x7fELF", 0o755),
        ("from ray_tune.cli import main", 0o644),  # not executable, so not on PATH
    ],
    ids=["shim", "binary", "mode"],
)
def test_a_file_on_path_of_neither_package_does_not_decide(both, text, mode):
    both.write(text, mode)
    with pytest.raises(UsageError, match="several packages"):
        find_program("acme-tune")


@pytest.mark.parametrize("module", ["torchtune_cli.tune", "ray_tune", "ray_tune.client"])
def test_another_program_on_path_is_refused(site, module):
    site.install(*RAY)
    path = site.wrap("other", module)
    with pytest.raises(UsageError) as caught:
        find_program("acme-tune")
    assert str(caught.value) == (
        f"'acme-tune' on PATH is {path}, which is not a program of a package installed with "
        f"{sys.executable}; that has a program of this name in ray 1.0 (ray_tune.cli:main); put "
        "the folder of the one to run first on PATH, or write -m with its module"
    )


@pytest.mark.parametrize(
    "text", [None, "#!/bin/sh\nexec pyenv exec acme-tune\n"], ids=["none", "shim"]
)
def test_one_is_found_without_path(site, text):
    site.install(*RAY)
    if text is not None:
        site.write(text)
    program = find_program("acme-tune")
    assert program.entry_point.module == RAY[1]


def test_no_package_has_the_program(site):
    assert find_program("acme-tune") is None


def script_of(first_lines):
    return f"#!{first_lines}\nimport sys\nprint('script', __name__, *sys.argv[1:])\n"


@pytest.mark.parametrize(
    "form", ["{python}", "{python}3.11", "/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n' '''"]
)
def test_a_script_without_an_entry_point_is_found_on_path(site, form):
    python = os.path.join(os.path.dirname(sys.executable), "python")
    path = site.write(script_of(form.format(python=python)))
    assert find_program("acme-tune") == (None, path)


@pytest.mark.parametrize("python", ["/elsewhere/bin/python", "/usr/bin/env python3", "/bin/sh"])
def test_a_script_of_another_interpreter_is_not_a_program(site, python):
    site.write(script_of(python))
    assert find_program("acme-tune") is None


def test_a_script_is_found_without_path(site, monkeypatch):
    path = site.write(script_of(sys.executable))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sysconfig, "get_path", {"scripts": str(site.bin)}.get)
    assert find_program("acme-tune") == (None, path)


def test_the_command_line_runs_a_script_without_an_entry_point(site):
    pytest.importorskip("torch")
    site.write(script_of(sys.executable))
    site.environ["PATH"] = f"{site.bin}:/usr/bin:/bin"
    done = run_python("-m", "plaunch_torchrun", "acme-tune", "a", env=site.environ)
    assert (done.returncode, done.stdout) == (0, "script __main__ a\n"), done.stderr


def test_the_command_line(both):
    pytest.importorskip("torch")
    both.wrap(*TORCHTUNE)

    def run():
        done = run_python("-m", "plaunch_torchrun", "acme-tune", "run", env=both.environ)
        return done.returncode, done.stdout, done.stderr

    both.environ["PATH"] = f"{both.bin}:/usr/bin:/bin"
    assert run()[:2] == (0, "torchtune run\n")
    (both.bin / "acme-tune").unlink()
    code, out, err = run()
    assert (code, out) == (2, "")
    assert err.startswith("plaunch: error: 'acme-tune' is a program of several packages")
