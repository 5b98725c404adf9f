"""`parse_hosts` reads the hosts of the engine `ssh`."""

import pytest
from plaunch.errors import UsageError
from plaunch_engines.ssh_hosts import SshHost, exclude_hosts, parse_hosts, set_pythons


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("node1", SshHost("node1", "node1")),
        ("me@node1", SshHost("node1", "me@node1")),
        ("me@node1:2222", SshHost("node1:2222", "me@node1", "2222")),
        ("me@site@node1", SshHost("node1", "me@site@node1")),
        ("10.0.0.5:22", SshHost("10.0.0.5:22", "10.0.0.5", "22")),
        ("fd00::5", SshHost("fd00::5", "fd00::5")),
        ("me@fd00::5", SshHost("fd00::5", "me@fd00::5")),
        ("[fd00::5]", SshHost("fd00::5", "fd00::5")),
        ("me@[fe80::5%eth0]:22", SshHost("[fe80::5%eth0]:22", "me@fe80::5%eth0", "22")),
        ("-oProxyCommand=x", None),
        ("-l@node1", None),
        ("node1 node2", None),
        ("node1:port", None),
        ("node1:0", None),
        ("node1:65536", None),
        ("me@", None),
        ("@node1", None),
        ("a;b", None),
    ],
)
def test_the_forms_of_a_host(text, host):
    where = f"node0,{text}"
    if host is None:
        with pytest.raises(UsageError, match=r"--on=ssh:node0,.*(is not a host|a port is)"):
            parse_hosts(where)
    else:
        assert parse_hosts(where) == [SshHost("node0", "node0"), host]


@pytest.mark.parametrize("where", ["a,b,a", "a,me@a", "a:22,b,x@a:22"])
def test_a_host_runs_one_agent(where):
    with pytest.raises(UsageError, match="is named 2 times; each host runs one agent"):
        parse_hosts(where)


def test_two_ports_of_a_host_are_two_hosts():
    assert [host.name for host in parse_hosts("a:1,a:2")] == ["a:1", "a:2"]


def names(hosts):
    return [host.name for host in hosts]


def test_ranges_stand_for_hosts():
    hosts = parse_hosts("node[08-10],me@gpu[1,3].lab:2222,[fd00::5]:22")
    assert names(hosts) == [
        "node08", "node09", "node10", "gpu1.lab:2222", "gpu3.lab:2222", "[fd00::5]:22",
    ]  # fmt: skip
    assert hosts[3] == SshHost("gpu1.lab:2222", "me@gpu1.lab", "2222")
    with pytest.raises(
        UsageError, match=r"--on=ssh:node\[1-: the list .* does not close a bracket"
    ):
        parse_hosts("node[1-")
    with pytest.raises(UsageError, match="'node2' is named 2 times"):
        parse_hosts("node[1-3],node2")


def test_many_hosts():
    assert len(parse_hosts("node[1-60000]")) == 60000


def test_hosts_are_excluded():
    hosts = parse_hosts("node[1-4],me@gpu:2222,fd00::5")
    assert names(exclude_hosts(hosts, ["node2", "gpu", "fd00::5"])) == ["node1", "node3", "node4"]
    assert names(exclude_hosts(hosts, ["gpu:2222"])) == [*names(hosts[:4]), "fd00::5"]
    assert exclude_hosts(hosts, []) == hosts
    with pytest.raises(UsageError, match="--exclude: 'nod2' is not a host of --on=ssh; did you"):
        exclude_hosts(hosts, ["nod2"])
    with pytest.raises(UsageError, match="--exclude leaves no host of --on=ssh"):
        exclude_hosts(hosts, names(hosts))


def test_hosts_have_their_python(tmp_path):
    where = write(tmp_path, "node[1-2] python=/opt/a slots=2\nme@node3\n")
    hosts = set_pythons(parse_hosts(where), {"node2": "/opt/b", "node3": "/opt/c"})
    assert [host.python for host in hosts] == ["/opt/a", "/opt/b", "/opt/c"]
    assert [host.slots for host in hosts] == [2, 2, None]
    with pytest.raises(UsageError, match="--node-python: 'x' is not a host of --on=ssh"):
        set_pythons(hosts, {"x": "/opt"})


def write(tmp_path, text):
    (tmp_path / "hosts").write_text(text)
    return f"@{tmp_path / 'hosts'}"


def test_a_host_file_of_deepspeed_or_mpirun(tmp_path):
    where = write(
        tmp_path, "# the cluster\n\nnode1 slots=8\n  node2 slots=4 max_slots=8 # half\nme@node3\n"
    )
    assert parse_hosts(where) == [
        SshHost("node1", "node1", slots=8),
        SshHost("node2", "node2", slots=4),
        SshHost("node3", "me@node3"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("node1\nnode2 slots=none\n", r"hosts, line 2: 'slots=none': slots is a whole number"),
        ("node1 slots=0\n", r"line 1: 'slots=0': slots is a whole number"),
        ("node1 8\n", r"line 1: '8' is not known; write HOST, HOST slots=N or HOST python=PATH"),
        ("node1 python=\n", r"line 1: 'python=' is not known"),
        ("node[1-\n", r"hosts, line 1: the list of hosts .* does not close a bracket"),
        ("-x\n", r"line 1: '-x' is not a host"),
        ("# none\n", r"there are no hosts in the file"),
        ("a\na slots=2\n", r"'a' is named 2 times"),
    ],
)
def test_a_bad_host_file(tmp_path, text, message):
    with pytest.raises(UsageError, match=message):
        parse_hosts(write(tmp_path, text))


def test_a_host_file_that_cannot_be_read(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read the host file: .*No such file"):
        parse_hosts(f"@{tmp_path}/hosts")
    (tmp_path / "hosts").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="cannot read the host file: 'utf-8'"):
        parse_hosts(f"@{tmp_path}/hosts")
