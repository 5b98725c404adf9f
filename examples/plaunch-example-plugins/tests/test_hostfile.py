from __future__ import annotations

import os

import pytest
from plaunch.errors import UsageError
from plaunch_example_plugins.devices import count_slots
from plaunch_example_plugins.hostfile import Host, find_this_host, read_hosts

HOSTS = """
# name   options
alpha    slots=4
beta.lab addr=10.0.0.7   # the one in the corner
"""


@pytest.fixture
def hostfile(tmp_path, monkeypatch):
    path = tmp_path / "hosts.txt"
    path.write_text(HOSTS)
    monkeypatch.setenv("HOSTFILE", str(path))
    monkeypatch.delenv("HOSTFILE_HOST", raising=False)
    return path


def test_hosts_are_read_in_order(hostfile):
    assert read_hosts() == [Host("alpha", "alpha", 4), Host("beta.lab", "10.0.0.7", 1)]


def test_a_path_beats_the_variable(hostfile, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("gamma\n")
    assert read_hosts(str(other)) == [Host("gamma", "gamma", 1)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no host"),
        ("alpha slots=many", "hosts.txt:1: slots='many' is not a number"),
        ("alpha\nbeta color=red", "hosts.txt:2: 'color=red' is neither"),
        ("alpha addr=", "'addr=' is neither"),
    ],
)
def test_a_malformed_file_is_refused(hostfile, text, message):
    hostfile.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_hosts()


def test_a_missing_file_is_refused(hostfile):
    hostfile.unlink()
    with pytest.raises(UsageError, match=r"hosts\.txt' cannot be read: No such file"):
        read_hosts()


def test_without_a_file_the_variable_is_named(monkeypatch):
    monkeypatch.delenv("HOSTFILE", raising=False)
    with pytest.raises(UsageError, match="set the variable HOSTFILE"):
        read_hosts()


@pytest.mark.parametrize(("name", "place"), [("alpha", 0), ("alpha.lab", 0), ("beta", 1)])
def test_a_host_is_found_with_or_without_its_domain(hostfile, name, place):
    assert find_this_host(read_hosts(), name) == place


def test_the_full_name_decides_between_hosts_of_the_same_short_name():
    hosts = [Host("a.east", "a.east"), Host("a.west", "a.west")]
    assert find_this_host(hosts, "a.west") == 1
    with pytest.raises(UsageError, match="'a' exactly once"):
        find_this_host(hosts, "a")


def test_the_machine_s_own_name_is_the_default(monkeypatch):
    monkeypatch.delenv("HOSTFILE_HOST", raising=False)
    own = os.uname().nodename
    assert find_this_host([Host("some-other-host", "x"), Host(own, own)]) == 1


def test_the_error_for_an_unknown_host_has_the_fix(hostfile):
    with pytest.raises(UsageError, match=r"names alpha, beta\.lab\. Set HOSTFILE_HOST"):
        find_this_host(read_hosts(), "gamma")


def test_slots_of_this_host_are_counted(hostfile, monkeypatch):
    monkeypatch.setenv("HOSTFILE_HOST", "alpha")
    assert count_slots() == 4
