"""Metrics of a launch reach the handlers that are configured in torch's module."""

from api import show, torchs

metrics = torchs("elastic.metrics")
launcher = torchs("launcher.api")
seen = []


class Handler(metrics.MetricHandler):
    def emit(self, metric_data):
        seen.append((metric_data.group_name, metric_data.name))


given = []


def initialize(config=None):
    given.append(config.params)
    metrics.configure(Handler())


metrics.initialize_metrics = initialize
config = launcher.LaunchConfig(
    1, 1, 1, rdzv_backend="c10d", rdzv_endpoint="localhost:0", run_id="me", metrics_cfg={"a": "b"}
)
launcher.elastic_launch(config, "sh")("-c", "exit 0")
names = {name for _, name in seen}
show(
    params=given,
    groups=sorted({group for group, _ in seen}),
    started="LocalElasticAgent._start_workers.success" in names,
    succeeded="workers.default_role.succeeded" in names,
)
