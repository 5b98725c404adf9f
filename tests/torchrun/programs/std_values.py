"""Std.from_str, its operators and to_map."""

from api import caught, multiprocessing, show

Std = multiprocessing.Std
show(values=[Std.from_str(t) == v for t, v in (("0", Std.NONE), ("3", Std.ALL), ("1", Std.OUT))])
show(maps=[{k: int(v) for k, v in Std.from_str("0:1,1:2").items()}])
show(bad=[caught(Std.from_str, text) for text in ("x", "0:x", "", "0:1,x")])
show(map={k: int(v) for k, v in multiprocessing.to_map({0: Std.OUT}, 2).items()})
show(ands=[int(Std.ALL & Std.OUT), int(Std.OUT | Std.ERR), Std.ALL.name])
