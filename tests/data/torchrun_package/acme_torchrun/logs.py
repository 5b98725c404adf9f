"""A logs spec for torchrun: one flat folder, files named by global rank."""

import os

from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, Std, to_map


class FlatLogsSpecs(LogsSpecs):
    def __init__(self, log_dir=None, redirects=Std.NONE, tee=Std.NONE, local_ranks_filter=None):
        if log_dir and os.path.isfile(log_dir):
            raise NotADirectoryError(f"log_dir: {log_dir} is a file")
        super().__init__(log_dir, redirects, tee, local_ranks_filter)

    @property
    def root_log_dir(self):
        return self._root_log_dir

    def reify(self, envs):
        os.makedirs(self._root_log_dir, exist_ok=True)
        dest = LogsDest()
        redirects = to_map(self._redirects, len(envs))
        tees = to_map(self._tee, len(envs))
        for local_rank, env in envs.items():
            base = os.path.join(self._root_log_dir, env.get("RANK", str(local_rank)))
            wanted = redirects[local_rank] | tees[local_rank]
            dest.stdouts[local_rank] = base + ".out" if Std.OUT in wanted else ""
            dest.stderrs[local_rank] = base + ".err" if Std.ERR in wanted else ""
            if Std.OUT in tees[local_rank]:
                dest.tee_stdouts[local_rank] = dest.stdouts[local_rank]
            if Std.ERR in tees[local_rank]:
                dest.tee_stderrs[local_rank] = dest.stderrs[local_rank]
            dest.error_files[local_rank] = base + ".json"
            env["TORCHELASTIC_ERROR_FILE"] = dest.error_files[local_rank]
        return dest
