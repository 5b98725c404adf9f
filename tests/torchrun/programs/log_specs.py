"""DefaultLogsSpecs: folders, reify and filters."""

import os

from api import caught, multiprocessing, show

Std = multiprocessing.Std
specs = multiprocessing.DefaultLogsSpecs("logs", redirects=Std.ALL, local_ranks_filter={1})
dest = specs.reify(
    {r: {"TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_RUN_ID": "me"} for r in range(2)}
)
root = specs.root_log_dir


def relative(path):
    parts = os.path.relpath(path, root).split(os.sep)
    return [parts[0][:3], *parts[1:]] if path else path


for name in ("stdouts", "stderrs", "error_files", "tee_stdouts"):
    show(**{name: {r: relative(p) for r, p in getattr(dest, name).items()}})
open("file", "w").close()
show(file=caught(multiprocessing.DefaultLogsSpecs, "file"))
