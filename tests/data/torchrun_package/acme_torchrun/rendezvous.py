"""A rendezvous backend for torchrun: all that it needs is among its options."""

from torch.distributed import HashStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)

ERRORS = {
    error.__name__: error
    for error in (
        RendezvousClosedError,
        RendezvousConnectionError,
        RendezvousError,
        RendezvousGracefulExitError,
        RendezvousStateError,
        RendezvousTimeoutError,
    )
}


class AcmeRendezvous(RendezvousHandler):
    def __init__(self, params):
        self.params = params
        self.closed = False
        self.store = HashStore()
        self.waiting = params.get_as_int("waiting", 0)

    def get_backend(self):
        return self.params.get("backend_name", "acme")

    def next_rendezvous(self):
        failure = self.params.get("fail_with")
        if failure is not None:
            raise ERRORS[failure]("acme says no")
        host, _, port = self.params.endpoint.partition(":")
        return RendezvousInfo(
            self.store,
            self.params.get_as_int("rank", 0),
            self.params.max_nodes,
            RendezvousStoreInfo(host, int(port)),
        )

    def is_closed(self):
        return self.closed

    def set_closed(self):
        self.closed = True

    def num_nodes_waiting(self):
        return self.waiting

    def get_run_id(self):
        return self.params.run_id

    def shutdown(self):
        self.closed = True  # as torch's own handlers; and no answer, which torchrun never reads


def create(params: RendezvousParameters) -> RendezvousHandler:
    assert isinstance(params, RendezvousParameters)
    return AcmeRendezvous(params)


def get_creator():
    return create
