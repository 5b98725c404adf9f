"""A module of hooks, named by two entry points of different kinds."""

from plaunch.plugin import hookimpl


def create_handler(params):
    raise NotImplementedError


def count():
    return 3


@hookimpl
def plaunch_rendezvous_backends():
    return {"acme": create_handler, "acme-lan": create_handler}


@hookimpl
def plaunch_device_counts():
    return {"acme": count}
