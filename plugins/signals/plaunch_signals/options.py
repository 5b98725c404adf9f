"""The option of the signal policy `notify`."""

from __future__ import annotations

from plaunch.lazy import TYPE_CHECKING
from plaunch.options import Option

if TYPE_CHECKING:
    from plaunch.cli import Arguments
    from plaunch.plugin import PluginManager

OPTIONS = (
    Option(
        ("--notify-signals",),
        "signals that the policy notify passes on to the workers (default: SIGUSR1,SIGUSR2)",
        metavar="SIG,...",
        fill="plaunch_signals.options:check_policy",
    ),
)


def check_policy(args: Arguments, manager: PluginManager) -> str:
    """Reject the option together with torchrun's policy, even if no policy is created.

    Raises:
        UsageError: the signal policy is `torchrun`.
    """
    del manager
    if args.signal_policy == "torchrun":
        from plaunch_signals.policies import reject_notify_signals  # only with the option

        reject_notify_signals(args.notify_signals)
    return ""
