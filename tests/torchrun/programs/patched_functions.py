"""Functions of a program in the place of torchrun's own: run, elastic_launch and others."""

import argparse
import sys

from api import show, torchs

api = torchs("launcher.api")
run = torchs("run")
ARGS = ["--nproc-per-node=2", "--no-python", sys.executable, "-c", "pass"]
original = {
    "elastic_launch": run.elastic_launch,
    "config_from_args": run.config_from_args,
    "launch_agent": api.launch_agent,
    "run": run.run,
    "parse_args": run.parse_args,
    "get_args_parser": run.get_args_parser,
}
FIELDS = ("min_nodes", "max_nodes", "nproc_per_node", "rdzv_backend", "rdzv_endpoint")


def described(config):
    return [getattr(config, name) for name in FIELDS] + [bool(config.run_id)]


def launch(config, entrypoint):
    def call(*args):
        show(launch=[described(config), entrypoint == sys.executable, list(args)])

    return call


run.elastic_launch = launch
run.main(ARGS)
run.main([*ARGS[:1], "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:29555", *ARGS[1:]])
run.elastic_launch = original["elastic_launch"]


def agent(config, entrypoint, args, **more):
    show(agent=[described(config), list(args), sorted(more)])
    return original["launch_agent"](config, entrypoint, args, **more)


api.launch_agent = agent
run.main(ARGS)
config = api.LaunchConfig(1, 1, 2, rdzv_backend="c10d", rdzv_endpoint="localhost:0", run_id="me")
config.start_method = "fork"
show(values=api.elastic_launch(config, max)(3, 4))
api.launch_agent = original["launch_agent"]


def from_args(args):
    config, _, words = original["config_from_args"](args)
    show(from_args=[described(config), list(words)])
    config.nproc_per_node = 1
    return config, "sh", ["-c", "echo $WORLD_SIZE > world"]


run.config_from_args = from_args
run.main(ARGS)
show(world=open("world").read())
run.config_from_args = original["config_from_args"]

run.run = lambda args: show(run=[args.nproc_per_node, args.training_script == sys.executable])
run.main(ARGS)
run.parse_args = lambda args: argparse.Namespace(nproc_per_node="7", training_script=args[0])
run.main(["other"])
run.parse_args = original["parse_args"]


def parser():
    made = original["get_args_parser"]()
    made.add_argument("--mine")
    return made


run.get_args_parser = parser
run.run = lambda args: show(mine=args.mine)
run.main(["--mine=5", *ARGS])
