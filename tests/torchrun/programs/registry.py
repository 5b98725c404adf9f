"""The registry of rendezvous handlers, with a handler of the program's own."""

from api import caught, rendezvous, show


class Own(rendezvous.RendezvousHandler):
    def __init__(self, name):
        self.name = name

    def get_backend(self):
        return self.name

    use_agent_store = False

    def next_rendezvous(self):
        raise rendezvous.RendezvousTimeoutError("late")

    def is_closed(self):
        return False

    def set_closed(self):
        pass

    def num_nodes_waiting(self):
        return 0

    def get_run_id(self):
        return "me"

    def shutdown(self):
        return True


registry = rendezvous.rendezvous_handler_registry


def creator(params):
    return Own("own")


registry.register("own", creator)
registry.register("own", creator)
registry.register("wrong", creator)


def params(name):
    return rendezvous.RendezvousParameters(name, "x:1", "me", 1, 1)


show(kind=type(rendezvous.get_rendezvous_handler(params("own"))).__name__)
show(
    twice=caught(registry.register, "own", lambda params: None),
    empty=caught(registry.register, "", creator),
)
show(
    unknown=caught(rendezvous.get_rendezvous_handler, params("nobody")),
    wrong=caught(registry.create_handler, params("wrong")),
)
show(late=caught(Own("own").next_rendezvous))
