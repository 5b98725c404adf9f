"""A client of the program's own, and expires without one."""

from api import caught, show, timer

calls = []


class Own(timer.TimerClient):
    def acquire(self, scope_id, expiration_time):
        calls.append((scope_id, expiration_time > 0))

    def release(self, scope_id):
        calls.append(scope_id)


def use(**options):
    with timer.expires(after=1, **options):
        calls.append("in")


show(before=caught(use))
use(scope="mine", client=Own())
timer.configure(Own())
use(scope="again")
show(calls=calls)
request = timer.TimerRequest(1, "scope", 2.5)
show(
    request=[
        request.worker_id,
        request.scope_id,
        request.expiration_time,
        request == timer.TimerRequest(1, "scope", 2.5),
    ]
)
