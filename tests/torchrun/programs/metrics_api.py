"""Metrics: a handler, streams, prof, put_metric and publish_metric."""

from api import metrics, show

found = []


class Own(metrics.MetricHandler):
    def emit(self, metric_data):
        found.append(
            [
                metric_data.group_name,
                metric_data.name,
                metric_data.value
                if isinstance(metric_data.value, int) and metric_data.value > 1
                else 1,
            ]
        )


metrics.configure(Own(), "mine")
metrics.configure(Own())
metrics.put_metric("m", 5, "mine")
metrics.put_metric("m", 6)


@metrics.prof
def timed():
    return 1


@metrics.prof(group="mine")
def fails():
    raise ValueError


show(result=timed())
try:
    fails()
except ValueError:
    pass
show(found=[[g, n, v] for g, n, v in found])
stream = metrics.getStream("mine")
stream.add_value("s", 7)
show(last=found[-1], kind=type(stream).__name__, cfg=metrics.MetricsConfig().params)
