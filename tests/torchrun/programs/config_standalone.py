"""config_from_args reads the rendezvous of its arguments, also with --standalone; run sets it."""

from api import show, torchs

run = torchs("run")
FIELDS = ("min_nodes", "max_nodes", "rdzv_backend", "rdzv_endpoint", "run_id")


def config_of(*words):
    config, _, _ = run.config_from_args(run.parse_args([*words, "--no-python", "sh"]))
    return [getattr(config, name) for name in FIELDS]


C10D = ("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:29517", "--rdzv-id=mine")
show(
    elastic=config_of("--standalone", "--nnodes=2", *C10D),
    single=config_of("--standalone", *C10D),
    static=config_of("--standalone", "--nnodes=2", "--node-rank=1", "--master-port=29518"),
)
