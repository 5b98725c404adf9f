"""The plugin behind `--preload`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.errors import UsageError
from plaunch.plugin import hookimpl

from plaunch_preload.preloader import Preloader, read_timeout

if TYPE_CHECKING:
    from collections.abc import Iterable

    from plaunch.doctor import DoctorContext, Finding
    from plaunch.plugin import PluginContext


@hookimpl
def plaunch_worker_starter(context: PluginContext) -> Preloader | None:
    """Return the starter of workers, if modules are given."""
    modules = read_modules(context.options.get("preload"))
    return Preloader(modules, read_timeout()) if modules else None


@hookimpl
def plaunch_doctor_checks(context: DoctorContext) -> Iterable[Finding]:
    """Test which of the modules prevent forking."""
    from plaunch.doctor import Finding, Status  # only for the doctor

    try:
        modules = read_modules(context.options.get("preload"))
        if modules:
            read_timeout()
    except UsageError as error:
        return [Finding(Status.PROBLEM, "preload", str(error))]
    if not modules:
        return []
    if context.options.get("no_python"):
        found = (
            "workers are started afresh, because --no-python means that the program is not Python"
        )
        return [Finding(Status.WARNING, "preload", found, "leave --preload out")]
    from plaunch_preload.doctor import try_modules  # only for the doctor

    script = str(context.options.get("training_script", ""))
    is_script = script.endswith(".py") and not context.options.get("module")
    return list(try_modules(modules, script if is_script else "", context.environ))


def read_modules(given: object) -> list[str]:
    """Return the modules given by the option or the setting; none if it is not given.

    Raises:
        UsageError: the value has no module, or is not a list of names.
    """
    if given is None:
        return []
    if given == "":
        raise UsageError("--preload names no module; write names as in torch,numpy")
    names = given.split(",") if isinstance(given, str) else given
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"preload is {given!r}; give names of modules, as in torch,numpy")
    modules = [name.strip() for name in names]
    for name in modules:
        if not all(part.isidentifier() for part in name.split(".")):
            raise UsageError(
                f"--preload names the module {name!r} in {given!r}; write names as in torch,numpy"
            )
    return modules
