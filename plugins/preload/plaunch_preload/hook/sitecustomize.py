"""The entry of the fork server, imported by its interpreter.

An interpreter imports `sitecustomize` when it is ready, just before it runs its program. The fork
server is started with the command of a worker, and with this folder first in `PYTHONPATH`: it
imports the preloaded modules here, and serves. A forked worker returns from here, and its
interpreter runs the program as a fresh one does. `__main__`, `sys.path`, tracebacks, `atexit` and
exit codes come from the interpreter itself.
"""

import importlib.util
import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_SERVER = os.path.join(os.path.dirname(_FOLDER), "server")
# The interpreter of the workers may not have plaunch installed.
_SPEC = importlib.util.spec_from_file_location(
    "plaunch_fork_server",
    os.path.join(_SERVER, "__init__.py"),
    submodule_search_locations=[_SERVER],
)
if _SPEC is not None and _SPEC.loader is not None:  # for type checkers; it is a file
    _PACKAGE = importlib.util.module_from_spec(_SPEC)
    sys.modules["plaunch_fork_server"] = _PACKAGE
    _SPEC.loader.exec_module(_PACKAGE)
    _PACKAGE.serve(_FOLDER)
