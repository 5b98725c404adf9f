"""The parser of `--inject`."""

from __future__ import annotations

import math
import re
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plaunch_fault_injection.faults import ANY, Fault, parse_faults

KINDS = {
    "kill:rank=1": Fault("", "kill", False, 1),
    "kill:rank=any,seed=7": Fault("", "kill", False, ANY, seed=7),
    "kill:rank=1,signal=SIGTERM,after=30s": Fault(
        "", "kill", False, 1, signum=signal.SIGTERM, after=30.0
    ),
    "kill:agent": Fault("", "kill", True),
    "kill:agent,node=gpu-7,attempt=0": Fault("", "kill", True, node="gpu-7", attempt=0),
    "kill:agent,group-rank=2": Fault("", "kill", True, 2),
    "kill:agent,group-rank=any": Fault("", "kill", True, ANY),
    "stop:rank=3,for=10s": Fault("", "stop", False, 3, seconds=10.0),
    "stop:agent,for=2m30s,after=1h": Fault("", "stop", True, seconds=150.0, after=3600.0),
    "exit:rank=0,code=3,step-file=a=b/step": Fault(
        "", "exit", False, 0, code=3, step_file="a=b/step"
    ),
    "exit:rank=0,code=0": Fault("", "exit", False, 0),
    "hang:rank=2,after=0": Fault("", "hang", False, 2),
    "kill:rank=0,every=60s,chance=0.1,seed=0,times=inf": Fault(
        "", "kill", False, 0, every=60.0, chance=0.1, seed=0, times=math.inf
    ),
}


@pytest.mark.parametrize("text", KINDS)
def test_a_fault(text):
    assert parse_faults(text) == (KINDS[text]._replace(text=text),)


def test_several_faults():
    text = "kill:rank=1,after=30s;stop:agent,for=10s; exit:rank=0,code=3 ;\nhang:rank=2"
    assert [fault.text for fault in parse_faults(text)] == [
        "kill:rank=1,after=30s",
        "stop:agent,for=10s",
        "exit:rank=0,code=3",
        "hang:rank=2",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' has an empty fault; write KIND:TARGET"),
        ("kill:rank=1;", "has an empty fault"),
        ("burn:rank=1", "unknown fault 'burn'; choose from exit, hang, kill, stop"),
        ("kill", "it has no target; write KIND:TARGET"),
        ("kill:", "'' is not a target of kill; write agent or rank=N or rank=any"),
        ("kill:node=a", "'node=a' is not a target of kill"),
        ("kill:rank", "'rank' is not a target of kill"),
        ("kill:agent=1", "'agent=1' is not a target of kill"),
        ("exit:agent,code=1", "'agent' is not a target of exit; write rank=N or rank=any"),
        ("hang:agent", "'agent' is not a target of hang; write rank=N or rank=any"),
        ("kill:rank=one", "'one' is not a rank; write a number, or any"),
        ("kill:rank=-1", "'-1' is not a rank"),
        ("kill:rank=", "'' is not a rank"),
        (
            "kill:rank=1,when=3",
            "unknown key 'when' for this kill; choose from after, attempt, chance, every, seed, "
            "signal, step-file, times",
        ),
        ("kill:rank=1,for=3s", "unknown key 'for' for this kill"),
        ("kill:rank=1,node=a", "unknown key 'node' for this kill"),
        (
            "stop:agent,for=3s,code=1",
            "unknown key 'code' for this stop; choose from after, ",
        ),
        ("kill:rank=1,", "unknown key '' for this kill"),
        ("kill:rank=1,after", "'after' has no value"),
        ("kill:rank=1,step-file=", "'step-file' has no value"),
        ("stop:rank=1", "it needs 'for'"),
        ("exit:rank=1", "it needs 'code'"),
        ("kill:rank=1,after=1s,after=2s", "'after' is given twice"),
        (
            "kill:rank=1,after=1s,every=2s",
            "'after' and 'every' both say when; give one of them",
        ),
        ("kill:rank=1,every=1s,step-file=x", "'every' and 'step-file' both say when"),
        ("kill:agent,node=a,group-rank=1", "'node' and 'group-rank' both say which node"),
        (
            "kill:rank=1,after=soon",
            "after: 'soon' is not a duration such as 90s, 2m30s or 1h, or a number of seconds",
        ),
        ("kill:rank=1,after=10x", "after: '10x' is not a duration"),
        ("kill:rank=1,after=inf", "after: 'inf' is not a duration"),
        ("kill:rank=1,every=0", "every: '0' is not a duration"),
        ("stop:rank=1,for=0s", "for: '0s' is not a duration"),
        ("exit:rank=1,code=256", "code: '256' is not a whole number from 0 to 255"),
        ("exit:rank=1,code=-1", "code: '-1' is not a whole number"),
        ("kill:rank=1,chance=0", "chance: '0' is not a probability above 0 up to 1"),
        ("kill:rank=1,chance=nan", "chance: 'nan' is not a probability"),
        ("kill:rank=1,chance=often", "chance: 'often' is not a probability"),
        ("kill:rank=1,times=0", "times: '0' is not a whole number from 1"),
        (
            "kill:rank=1,signal=9",
            "signal: '9' is not a signal that ends a process; choose from SIG",
        ),
        ("kill:rank=1,signal=SIGSTOP", "signal: 'SIGSTOP' is not a signal that ends a process"),
        ("kill:agent,group-rank=x", "group-rank: 'x' is not a rank"),
        ("kill:rank=1,seed=1", "'seed' has no effect without random choices"),
    ],
)
def test_malformed_faults(text, message):
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        parse_faults(text)
    message = str(caught.value)
    assert text in message
    assert "\n" not in message


FAULTS = st.sampled_from(sorted(KINDS))
PIECES = st.sampled_from([*":;,= ", *"kill stop rank agent for after every any 1 0 3s".split()])


@given(st.lists(FAULTS, min_size=1))
def test_a_list_of_faults(texts):
    assert parse_faults(";".join(texts)) == tuple(KINDS[text]._replace(text=text) for text in texts)


@given(st.one_of(st.text(), st.lists(PIECES).map("".join)))
def test_any_text_is_parsed_or_rejected_with_one_line(text):
    message = ""
    try:
        faults = parse_faults(text)
    except ValueError as error:
        message = str(error)
    else:
        assert [fault.text for fault in faults] == [part.strip() for part in text.split(";")]
    assert "\n" not in message
