"""max_restarts: attempts and the count that workers see."""

from api import caught, launcher, show, utils


def config(restarts):
    return launcher.LaunchConfig(
        1,
        1,
        1,
        run_id="me",
        rdzv_backend="static",
        max_restarts=restarts,
        monitor_interval=0.05,
        rdzv_endpoint=f"127.0.0.1:{utils.get_free_port()}",
        rdzv_configs={"rank": 0},
    )


SCRIPT = 'echo "$TORCHELASTIC_RESTART_COUNT" >> {}; test "$TORCHELASTIC_RESTART_COUNT" = 1'
show(second=launcher.elastic_launch(config(2), "sh")("-c", SCRIPT.format("a")), a=open("a").read())
launch = launcher.elastic_launch(config(1), "sh")
show(raised=caught(launch, "-c", "echo x >> b; exit 1"), b=open("b").read())
