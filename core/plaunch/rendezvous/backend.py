"""What a launch knows of a rendezvous backend, its traits, and what it gives it, the parameters.

Names are torchrun's where it has them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from plaunch.durations import PERIOD
from plaunch.errors import UsageError
from plaunch.numbers import quote, whole
from plaunch.values import Record, Value, plain_dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from plaunch.durations import Duration
    from plaunch.restarts import RestartPolicy

T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., Any]")


@plain_dataclass
class JobSettings(Value):
    """What a launch passes to its backend beside torchrun's parameters.

    Args:
        node_rank: the index that this node requests, or None.
        port_range: the first and the last port that may be picked on this node, or None for any.
        start_timeout: seconds until the first worker of this node must run, or None; the default of
            the option `join_timeout`, then.
        restart_policy: decides what follows a failure of the job; None leaves it to the budget.
        shared: more options on which all nodes must agree, by name, as texts; those that are not
            given are left out.
        command: what the workers of this node run: the program, and its arguments as texts. It
            distinguishes jobs that share an endpoint and have the default run id.
    """

    node_rank: int | None = None
    port_range: tuple[int, int] | None = None
    start_timeout: float | None = None
    restart_policy: RestartPolicy | None = None
    shared: Mapping[str, str] = field(default_factory=dict)
    command: Sequence[str] = ()


@plain_dataclass
class NodeSettings(Value):
    """What one node runs; its agent passes it to `RendezvousHandler.prepare`.

    The defaults are those of a handler that is used without an agent.

    Args:
        role: the role of this node's workers.
        local_world_size: how many workers this node runs.
        max_restarts: the job's budget; all nodes must agree.
        stop_timeout: how long this node may need to stop its workers before it can be in another
            round, in seconds; the others wait for it that long.
        local_addr: this node's address, if its agent was given one.
    """

    role: str = "default"
    local_world_size: int = 1
    max_restarts: int = 0
    stop_timeout: float = 0.0
    local_addr: str | None = None


_ATTRIBUTE = "plaunch_traits"


@plain_dataclass
class BackendTraits(Value):
    """How the nodes of a backend find each other; new fields may be added.

    Args:
        needs_endpoint: whether several nodes need an endpoint to meet.
        default_port: of an endpoint without one; None if the backend has none.
        is_hosted_by_node: whether the endpoint is one of the nodes, which a scheduler can name.
        is_single_node: whether a node without an endpoint is a job of its own, with a run id for
            itself.
        has_given_ranks: whether nodes get their ranks from `--node-rank`, and meet at
            `--master-addr` and `--master-port`.
        coordinates_restarts: whether a failure on one node restarts the workers of all nodes.
        fill: is called before the settings of a launch with this backend are made, with the parsed
            options (`plaunch.cli.Arguments`). It gives values to options that have none, warns, or
            raises `UsageError`.
        check: is called instead of the factory where a launch is only checked (`--dry-run`,
            `--doctor`), with the same parameters. It raises what the factory would raise, and
            contacts nothing; its result is ignored.
    """

    needs_endpoint: bool = False
    default_port: int | None = None
    is_hosted_by_node: bool = False
    is_single_node: bool = False
    has_given_ranks: bool = False
    coordinates_restarts: bool = False
    fill: Callable[[Any], None] | None = None
    check: Callable[[RendezvousParameters], object] | None = None

    def check_endpoint(self, backend: str, endpoint: str, max_nodes: int) -> None:
        """Check that several nodes have an endpoint if they need one.

        Args:
            backend: the name of the backend.
            endpoint: the endpoint; empty if none was given.
            max_nodes: how many nodes the job has at most.

        Raises:
            UsageError: it is missing; each node would wait for the others by itself.
        """
        if endpoint or max_nodes == 1 or not self.needs_endpoint:
            return
        if self.has_given_ranks:
            advice = (
                "--master-addr with that of node 0, the same on all nodes (127.0.0.1 if all are on "
                "this machine), or choose an elastic backend with --rdzv-backend and "
                "--rdzv-endpoint"
            )
        elif self.is_hosted_by_node:
            advice = (
                "--rdzv-endpoint with the name of one node, the same on all nodes (localhost if "
                "all are on this machine)"
            )
        else:
            advice = (
                "--rdzv-endpoint with the address of the backend's store, the same on all nodes"
            )
        raise UsageError(
            f"{max_nodes} nodes (--nnodes) with the backend {backend!r} need an address that all "
            f"of them know, and none was given; give {advice}"
        )


def backend_traits(traits: BackendTraits) -> Callable[[F], F]:
    """Declare the traits of a backend; decorates the function that creates its handlers."""

    def declare(factory: F) -> F:
        setattr(factory, _ATTRIBUTE, traits)
        return factory

    return declare


def traits_of(factory: object) -> BackendTraits:
    """The traits that a factory of handlers declares, or the defaults."""
    traits = getattr(factory, _ATTRIBUTE, None)
    return traits if isinstance(traits, BackendTraits) else BackendTraits()


# The options of all of torchrun's backends; there, a backend ignores those that it does not need.
TORCHRUN_OPTIONS = frozenset(
    {
        "ca_cert",
        "cacert",
        "cas_backoff_max_seconds",
        "cert",
        "close_timeout",
        "etcd_prefix",
        "heartbeat_timeout",
        "is_host",
        "join_timeout",
        "keep_alive_interval",
        "keep_alive_max_attempt",
        "key",
        "last_call_timeout",
        "protocol",
        "rank",
        "read_timeout",
        "ssl_cert",
        "ssl_cert_key",
        "store_type",
        "timeout",
    }
)

_TRUE = frozenset({"1", "true", "t", "yes", "y"})
_FALSE = frozenset({"0", "false", "f", "no", "n"})


@dataclass(init=False, eq=False, repr=False)
class RendezvousParameters(Record):
    """What a backend is created with. Names are torchrun's.

    Args:
        backend: the backend's name.
        endpoint: address of its store, as `host[:port]` or in the backend's own form.
        run_id: the id of the job.
        min_nodes: how few nodes may form a round.
        max_nodes: how many nodes a round has at most.
        local_addr: this node's address as given by the user, or None.
        job: more settings of the launch; torchrun has no such argument.
        kwargs: backend options (`--rdzv-conf`), kept in `config`; values are strings from the
            command line and may be anything in code.

    Raises:
        UsageError: the backend or the run id is empty, or the node range is.
    """

    backend: str
    endpoint: str
    run_id: str
    min_nodes: int
    max_nodes: int
    local_addr: str | None = None
    config: dict[str, object] = field(default_factory=dict)
    job: JobSettings = field(default_factory=JobSettings)
    secrets_read: set[str] = field(default_factory=set, repr=False, compare=False)

    def __init__(
        self,
        backend: str,
        endpoint: str,
        run_id: str,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        *,
        job: JobSettings | None = None,
        **kwargs: object,
    ) -> None:
        if not backend:
            raise UsageError("the rendezvous backend has no name")
        if not run_id:
            raise UsageError("the run id is empty; give one with --rdzv-id")
        if min_nodes < 1:
            raise UsageError(f"the minimum number of nodes is {min_nodes}; it must be at least 1")
        if max_nodes < min_nodes:
            raise UsageError(
                f"the maximum number of nodes ({max_nodes}) is below the minimum ({min_nodes})"
            )
        self.backend = backend
        self.endpoint = endpoint
        self.run_id = run_id
        self.min_nodes = min_nodes
        self.max_nodes = max_nodes
        self.local_addr = local_addr
        self.config = dict(kwargs)
        self.job = JobSettings() if job is None else job
        self.secrets_read = set()  # names of those that the backend has asked for; copies share it

    def get(self, key: str, default: object = None) -> object:
        """The value of option `key` as it was given, or `default`."""
        return self.config.get(key, default)

    def get_as_bool(self, key: str, default: bool | None = None) -> bool | None:
        """The value of option `key` as a boolean: 1/0, true/false, t/f, yes/no, y/n, any case.

        Raises:
            UsageError: the value is something else.
        """
        value = self.get(key)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        word = str(value).lower()
        if word in _TRUE:
            return True
        if word in _FALSE:
            return False
        raise self._not("a boolean (true or false)", key, value)

    def get_as_int(self, key: str, default: int | None = None) -> int | None:
        """The value of option `key` as an integer.

        Raises:
            UsageError: the value is not one.
        """
        return self._get_as(whole, "an integer", key, default)

    def get_as_float(self, key: str, default: float | None = None) -> float | None:
        """The value of option `key` as a number; torchrun has no such getter.

        Raises:
            UsageError: the value is not one.
        """
        return self._get_as(float, "a number", key, default)

    def _get_as(
        self, convert: Callable[[str], T], what: str, key: str, default: T | None
    ) -> T | None:
        value = self.get(key)
        if value is None:
            return default
        try:
            return convert(str(value))
        except ValueError:
            raise self._not(what, key, value) from None

    def get_as_seconds(
        self, key: str, default: float | None = None, duration: Duration = PERIOD
    ) -> float | None:
        """The value of option `key` as a duration, by default above 0 and not endless.

        Raises:
            UsageError: the value is not a duration in that range.
        """
        value = self.get(key)
        name = f"option {key!r} of rendezvous backend {self.backend!r} (--rdzv-conf)"
        return default if value is None else duration.read(str(value), name)

    def refuse_unknown(self, known: frozenset[str], ignored: frozenset[str] = frozenset()) -> None:
        """Refuse options that resemble a `known` one, and warn of others that are not known.

        torchrun ignores what its backends do not know, and command lines in use have such options.

        Args:
            known: the options of the backend.
            ignored: options without an effect, which are not refused although they may resemble a
                known one. Those of torchrun's backends are among them.

        Raises:
            UsageError: an option is probably a misspelt one; the message names that.
        """
        for key in sorted(self.config):
            if key in known:
                continue
            if key in ignored or key in TORCHRUN_OPTIONS:
                _warn_ignored(f"rendezvous backend {self.backend!r} does not need option {key!r}")
                continue
            from plaunch._names import closest, suggest  # rare

            text = f"rendezvous backend {self.backend!r} has no option {key!r} (--rdzv-conf)"
            if closest(key, known) is not None:
                raise UsageError(f"{text}{suggest(key, known)}")
            _warn_ignored(text)

    def _not(self, what: str, key: str, value: object) -> UsageError:
        return UsageError(
            f"option {key!r} of rendezvous backend {self.backend!r} is {quote(value)}, "
            f"which is not {what}"
        )


def _warn_ignored(text: str) -> None:
    import logging  # a warning is rare

    logging.getLogger("plaunch").warning("%s; it is ignored", text)


TOKEN_OPTION = "token_file"  # noqa: S105 - the name of an option
TOKEN_VARIABLE = "PLAUNCH_RDZV_TOKEN"  # noqa: S105 - the name of a variable


def check_token_is_used(params: RendezvousParameters, environ: Mapping[str, str]) -> None:
    """Check that the backend has read the token, if one is set: its user relies on it.

    Raises:
        UsageError: it has not, and several nodes would exchange unsigned messages.
    """
    if TOKEN_OPTION in params.secrets_read or params.max_nodes == 1:
        return
    path = params.get(TOKEN_OPTION)
    if path is None and not environ.get(TOKEN_VARIABLE):
        return
    where = TOKEN_VARIABLE if path is None else f"--rdzv-conf {TOKEN_OPTION}={path}"
    raise UsageError(
        f"a job token is set ({where}), but rendezvous backend {params.backend!r} does not sign "
        "anything with it; choose a backend that does, such as c10d or etcd-v2, or remove the "
        "token"
    )
