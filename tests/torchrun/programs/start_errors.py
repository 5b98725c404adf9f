"""Arguments that start_processes refuses, and a program that does not exist."""

from api import caught, multiprocessing, show


def start(args, envs, entrypoint="sh", **options):
    multiprocessing.start_processes(
        "job", entrypoint, args, envs, multiprocessing.DefaultLogsSpecs(), **options
    ).close()


show(mismatch=caught(start, {0: ()}, {0: {}, 1: {}}), shifted=caught(start, {1: ()}, {1: {}}))
show(missing=caught(start, {0: ()}, {0: {}}, "/no/such/program"))
