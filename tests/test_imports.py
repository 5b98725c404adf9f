"""Which packages a plugin may import: see "Folders" in docs/contributing.md.

The layers inside the core are contracts of import-linter, in pyproject.toml.
"""

from __future__ import annotations

import ast

import pytest

from helpers.sources import parse_all, targets_of

# The public modules of the core, and of those only their own names.
PUBLIC = {
    "plaunch",
    *(
        f"plaunch.{name}"
        for name in (
            "agent cli doctor durations engines errors events health lazy numbers options"
            " plugin process rendezvous restarts scheduling texts threads values"
        ).split()
    ),
}
# Libraries in the packages of plugins that others may import as well, and the libraries below each.
LIBRARIES = {
    "plaunch_events": set(),
    "plaunch_hang.stacks": set(),
    "plaunch_job_store": {"plaunch_membership"},
    "plaunch_membership": {"plaunch_network"},
    "plaunch_network": set(),
}
MORE = {
    # torchrun has these names, too.
    "plaunch_torchrun": {"plaunch_multiprocessing"},
    # The process of the store imports the package, which is therefore empty.
    "plaunch_rendezvous_c10d": {
        f"plaunch_job_store.{name}"
        for name in (
            *("authentication", "client", "client_greeting", "frames", "host", "identity"),
            *("other_programs", "reports", "store"),
        )
    },
    "plaunch_engines": {
        f"plaunch_job_store.{name}"
        for name in ("authentication", "client", "host", "identity", "reports", "server")
    },
    # Suites and fakes are for tests of plugins.
    "plaunch_testing": {
        *("plaunch.testing", "plaunch_membership.testing"),
        # The simulator creates what a launch creates, with other workers and another network.
        *(f"plaunch.agent.{name}" for name in ("agent", "components", "notifier", "rounds")),
        *("plaunch.agent.notifications", "plaunch.rendezvous.job"),
        *("plaunch.agent.extensions", "plaunch.agent.states", "plaunch.agent.worker"),
        *("plaunch.plugin.context", "plaunch.rendezvous.backend", "plaunch_restarts.policies"),
        "plaunch_membership.shared",
        *(f"plaunch.process.{name}" for name in ("consequences", "failure", "streams", "watches")),
        *(
            f"plaunch_job_store.{name}"
            for name in ("answers", "client", "frames", "limits", "sessions", "store", "table")
        ),
        *(f"plaunch_engines.{name}" for name in ("driver", "output", "plan", "records")),
    },
}
# Packages that would make the launcher slow, and the only modules that import them.
HEAVY = {
    "bokeh": {"plaunch_report.charts", "plaunch_report.page"},
    "etcd3": set(),
    "google": {"plaunch_rendezvous_etcd.protocol"},
    "greenlet": {"plaunch_testing.simulation.hub"},
    "grpc": {"plaunch_rendezvous_etcd.protocol"},
    "jinja2": {"plaunch_report.page"},
    "kubernetes": {"plaunch_engines.kubernetes_client"},
    "numpy": set(),
    "opentelemetry": {"plaunch_events.otel_export"},
    "prometheus_client": {"plaunch_status.prometheus"},
    "ray": {
        "plaunch_engines.ray_actor",
        "plaunch_engines.ray_client",
        "plaunch_engines.ray_cluster",
    },
    "sklearn": set(),
    "torch": {
        "plaunch_multiprocessing.context",  # if the caller has loaded torch
        "plaunch_rendezvous_c10d.job_store",  # for programs that read the store of a round
        "plaunch_rendezvous_c10d.torch_adapter",
        "plaunch_rendezvous_c10d.torch_import",
        "plaunch_rendezvous_c10d.torch_stores",
        "plaunch_rendezvous_static.round_store",  # for agents of a program's own
        "plaunch_torchrun.bridges",  # for plugins that were written for torchrun
        "plaunch_torchrun.elastic.control_plane",
        "plaunch_worker_store.serving",  # runs in the workers' interpreter
    },
    "urllib3": {"plaunch_engines.kubernetes_client"},
    "yaml": {"plaunch_engines.kubernetes_template"},
}


def package_of(module):
    return module.partition(".")[0]


def part_of(module):
    """The library that a module is in, or its package."""
    within = (name for name in LIBRARIES if f"{module}.".startswith(f"{name}."))
    return next(within, package_of(module))


@pytest.fixture(scope="module")
def edges():
    """Which module imports which, also inside functions and for types only."""
    return [
        (module, target)
        for module, tree in parse_all().items()
        for node in ast.walk(tree)
        for target in targets_of(node)
    ]


def is_allowed(module, target):
    """Whether `module` may import `target`."""
    part = part_of(module)
    if package_of(target) in HEAVY:
        return module in HEAVY[package_of(target)]
    if part_of(target) == part or not target.startswith("plaunch"):
        return True
    if part == "plaunch":
        return False
    return target in PUBLIC | LIBRARIES.get(part, LIBRARIES.keys()) | MORE.get(part, set())


def test_packages_import_only_what_they_may(edges):
    assert ("plaunch_report.charts", "plaunch_events") in edges
    assert [edge for edge in edges if not is_allowed(*edge)] == []


def test_each_exception_is_used(edges):
    packages = {(package_of(module), target) for module, target in edges}
    assert all((package, t) in packages for package, found in MORE.items() for t in found)
    tops = {(module, package_of(target)) for module, target in edges}
    assert all((module, heavy) in tops for heavy, found in HEAVY.items() for module in found)


@pytest.mark.parametrize(
    ("module", "target"),
    [
        ("plaunch.launch", "plaunch_events"),  # the core never imports a plugin
        ("plaunch.launch", "torch"),
        ("plaunch_hang.watch", "torch.distributed"),
        ("plaunch_hang.watch", "plaunch.agent.loop"),  # not a public name
        ("plaunch_hang.watch", "plaunch.config"),
        ("plaunch_hang.watch", "plaunch_hang.stacks.reading"),
        ("plaunch_hang.watch", "plaunch_doctor"),  # a plugin never imports another one
        ("plaunch_hang.watch", "plaunch.testing"),
        ("plaunch_hang.stacks.reading", "plaunch_events"),  # of libraries, only those below
        ("plaunch_hang.stacks.reading", "plaunch_hang.watch"),
        ("plaunch_torchrun.api", "plaunch_multiprocessing.context"),
    ],
)
def test_other_imports_are_not_allowed(module, target):
    assert not is_allowed(module, target)
