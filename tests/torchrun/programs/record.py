"""The decorator record: results, exceptions, and the error file."""

import json
import os

from api import caught, multiprocessing, show

os.environ["TORCHELASTIC_ERROR_FILE"] = "error.json"


@multiprocessing.record
def good(x):
    return x + 1


@multiprocessing.record
def bad():
    raise KeyError("on purpose")


@multiprocessing.record
def leaves():
    raise SystemExit(5)


show(good=good(1), name=good.__name__, bad=caught(bad))
written = json.load(open("error.json"))["message"]
show(keys=sorted(written), said=written["message"], extra=sorted(written["extraInfo"]))
os.unlink("error.json")
try:
    leaves()
except SystemExit as end:
    show(left=end.code, file=os.path.exists("error.json"))
