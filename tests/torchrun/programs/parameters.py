"""RendezvousParameters: accessors and refusals."""

from api import caught, rendezvous, show

make = rendezvous.RendezvousParameters
params = make("b", "host:1", "me", 1, 2, a="1", yes="true", no=0, bad="x", empty=None)
show(get=[params.get("a"), params.get("z"), params.get("z", 5), params.get("empty", 4)])
show(
    bools=[
        params.get_as_bool("yes"),
        params.get_as_bool("no"),
        params.get_as_bool("z", True),
        params.get_as_bool("z"),
    ]
)
show(ints=[params.get_as_int("a"), params.get_as_int("z", 9)])
show(errors=[caught(params.get_as_int, "bad"), caught(params.get_as_bool, "bad")])
show(
    refused=[
        caught(make, "", "", "me", 1, 1),
        caught(make, "b", "", "me", 0, 1),
        caught(make, "b", "", "me", 2, 1),
        caught(make, "b", "", "", 1, 1),
    ]
)
show(config=params.config, run=params.run_id, local=params.local_addr)
show(
    parsed=[list(rendezvous.parse_rendezvous_endpoint(e, 29)) for e in ("", "h", "h:3", "[::1]:4")]
)
show(
    unparsed=[
        caught(rendezvous.parse_rendezvous_endpoint, e, 29) for e in ("h:x", "h:70000", ":1", "h:")
    ]
)
