"""A program that wraps a launcher and adds options, like `accelerate launch`."""

import importlib
import sys

launcher = importlib.import_module(sys.argv.pop(1))


def defaults(*positionals):
    """Return the launcher's default options."""
    return launcher.get_args_parser().parse_known_args([*positionals])[0]


def main():
    parser = launcher.get_args_parser()
    parser.add_argument("--precision", default="fp32")
    args = parser.parse_args()
    sys.stdout.write(f"precision {args.precision}\n")
    final = defaults(args.training_script)
    for name, value in vars(args).items():
        if hasattr(final, name):
            setattr(final, name, value)
    final.master_port = "0" if final.master_port is None else str(final.master_port)
    final.nproc_per_node = str(final.nproc_per_node)
    final.standalone = True
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        launcher.run(final)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        sys.stdout.write(f"rank {rank} failed with {failure.exitcode}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
