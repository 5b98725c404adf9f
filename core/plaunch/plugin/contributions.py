"""What plugins contribute to the workers: variables, devices and processors, a store, a starter."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from plaunch.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from plaunch.agent.worker import WorkerInfo
    from plaunch.plugin.context import PluginContext
    from plaunch.plugin.guard import Answer

ENVIRONMENT = "plaunch_worker_env"


class SoleHook(NamedTuple):
    """A hook that one plugin of a launch may answer.

    Args:
        name: the name of the hook.
        methods: what an answer must have.
        answer: what messages call an answer.
        deed: what two plugins that answer would both do.
    """

    name: str
    methods: tuple[str, ...]
    answer: str
    deed: str


BINDER = SoleHook("plaunch_worker_binder", ("plan", "environment"), "Binder", "bind the workers")
STORE = SoleHook(
    "plaunch_worker_store",
    ("__call__",),
    "function that opens a store",
    "host the workers' store",
)
STARTER = SoleHook(
    "plaunch_worker_starter",
    ("begin", "wait", "prepare", "start", "fds", "close"),
    "Starter",
    "start the workers",
)


def added_variables(hook: Any, worker: WorkerInfo, env: Mapping[str, str]) -> dict[str, str]:
    """Merge what plugins add for one worker with `plaunch_worker_env`.

    A value that a plugin returns unchanged from `env` is not a contribution.

    Args:
        hook: calls hooks.
        worker: the worker.
        env: what plaunch itself sets for it.

    Raises:
        PluginError: a plugin fails, does not return, returns something that is not an environment,
            changes a variable of plaunch's own, or contradicts another plugin.
    """
    merged: dict[str, str] = {}
    owners: dict[str, str] = {}
    answers: list[Answer] = hook.plaunch_worker_env(worker=worker, env=MappingProxyType(dict(env)))
    for answer in answers:
        for name, value in _variables(answer):
            if env.get(name) == value:
                continue
            if name in env:
                raise PluginError(
                    f"{answer.who} sets {name} to {value!r} in {ENVIRONMENT}, but plaunch itself "
                    f"sets it to {env[name]!r}; a plugin may only add variables"
                )
            if merged.setdefault(name, value) != value:
                raise PluginError(
                    f"{owners[name]} and {answer.who} set {name} to different values in "
                    f"{ENVIRONMENT}: {merged[name]!r} and {value!r}; block one of them with "
                    "-p no:NAME"
                )
            owners.setdefault(name, answer.who)
    return merged


def find_sole_answer(sole: SoleHook, hook: Any, context: PluginContext) -> Any:
    """The only answer to a hook; None if no plugin answers.

    Args:
        sole: the hook.
        hook: calls hooks.
        context: the launch.

    Raises:
        UsageError: a plugin refuses the settings.
        PluginError: a plugin fails, does not return, returns something else, or is the second one.
    """
    answers: list[Answer] = getattr(hook, sole.name)(context=context)
    for who, value in ((answer.who, answer.value) for answer in answers):
        if not all(callable(getattr(value, name, None)) for name in sole.methods):
            raise PluginError(
                f"{who} returned {value!r} from {sole.name}, which is not a {sole.answer}"
            )
    if len(answers) > 1:
        raise PluginError(
            f"{answers[0].who} and {answers[1].who} both {sole.deed} ({sole.name}); block one of "
            "them with -p no:NAME"
        )
    return answers[0].value if answers else None


def _variables(answer: Answer) -> Iterable[tuple[str, str]]:
    if not isinstance(answer.value, Mapping):
        raise PluginError(
            f"{answer.who} returned {answer.value!r} from {ENVIRONMENT}, which is neither a "
            "mapping nor None"
        )
    for name, value in answer.value.items():
        if not _is_variable(name, value):
            raise PluginError(
                f"{answer.who} returned {name!r}: {value!r} from {ENVIRONMENT}, which is not an "
                "environment variable; both must be strings, the name without '='"
            )
    return answer.value.items()


def _is_variable(name: object, value: object) -> bool:
    return (
        isinstance(name, str)
        and isinstance(value, str)
        and bool(name)
        and "=" not in name
        and "\0" not in name + value
    )
