"""The schedulers `slurm`, `kubernetes`, `mpi` and `none`, which read environment variables.

None of them sends requests or resolves names. `filling` implements `--scheduler`, for these and for
those of other plugins.
"""
