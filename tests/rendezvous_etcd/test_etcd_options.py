"""The options for etcd, and the errors about them."""

from __future__ import annotations

import pytest
from plaunch.errors import UsageError
from plaunch.rendezvous import RendezvousParameters
from plaunch_rendezvous_etcd import create_etcd_handler
from plaunch_rendezvous_etcd.options import Endpoint, Security, read_options


def read(params_of, endpoint="", environ=None, **config):
    return read_options(params_of(endpoint, **config), environ or {})


@pytest.fixture
def files(tmp_path):
    paths = {}
    for name in ("ca", "cert", "key", "password"):
        path = tmp_path / name
        path.write_text(f"the {name}\n")
        path.chmod(0o600)
        paths[name] = str(path)
    return paths


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("", ["localhost:2379"]),
        ("a", ["a:2379"]),
        ("a:1", ["a:1"]),
        ("a:1,b,c:3", ["a:1", "b:2379", "c:3"]),
        (" a:1 , b:2 ", ["a:1", "b:2"]),
        ("a:1,a:1,b:2", ["a:1", "b:2"]),
        ("[::1]:5,::2", ["[::1]:5", "[::2]:2379"]),
        ("http://a:1/,http://b:2", ["a:1", "b:2"]),
    ],
)
def test_endpoints(params_of, endpoint, expected):
    options = read(params_of, endpoint)
    assert [str(one) for one in options.endpoints] == expected
    assert options.endpoint == ",".join(expected)
    assert not options.security.is_on


@pytest.mark.parametrize(
    ("endpoint", "config", "message"),
    [
        ("a:1,,b:2", {}, "empty part"),
        ("a:0", {}, "has no port that all nodes know"),
        ("a:x", {}, "port 'x'"),
        ("a", {"protocol": "ftp"}, "'ftp'; choose from http, https"),
        ("https://a", {"protocol": "http"}, "do not agree: http, https"),
        ("http://a,https://b", {}, "do not agree: http, https"),
        ("a", {"etcd_prefix": "/"}, "'etcd_prefix' .* is '/'"),
        ("a", {"etcd_prefix": "/größe"}, "'etcd_prefix'"),
        ("a", {"etcd_prefix": "/a b"}, "'etcd_prefix'"),
        ("a", {"connect_timeout": 0}, "'connect_timeout' .* above 0"),
        ("a", {"connect_timeout": "soon"}, "'connect_timeout' .* not a number"),
        ("a", {"read_timeout": -1}, "'read_timeout'"),
        ("a", {"read_timeout": "nan"}, "'read_timeout'"),
        ("a", {"job_ttl": 59}, "'job_ttl' .* from 60"),
        ("a", {"etcd_user": "ann"}, "'ann' has no password; give one in PLAUNCH_ETCD_PASSWORD"),
    ],
)
def test_invalid_options(params_of, endpoint, config, message):
    with pytest.raises(UsageError, match=message):
        read(params_of, endpoint, **config)


def test_defaults_are_torchruns(params_of):
    options = read(params_of, "a")
    assert options.prefix == "/torch/elastic/rendezvous"
    assert (options.connect_timeout, options.read_timeout, options.job_ttl) == (10, 60, 7200)
    assert read(params_of, "a", backend="etcd").prefix == "/torchelastic/p2p"
    assert read(params_of, "a", backend="etcd", etcd_prefix="/mine/").prefix == "/mine"


@pytest.mark.parametrize("backend", ["etcd", "etcd-v2"])
@pytest.mark.parametrize(
    "names", [("ca_cert", "ssl_cert", "ssl_cert_key"), ("cacert", "cert", "key")]
)
def test_both_backends_accept_the_names_of_both(params_of, files, backend, names):
    paths = dict(zip(names, (files["ca"], files["cert"], files["key"]), strict=True))
    for endpoint, more in (("a", {"protocol": "HTTPS"}), ("https://a", {})):
        options = read(params_of, endpoint, backend=backend, **paths, **more)
        expected = Security(True, files["ca"], files["cert"], files["key"])
        assert options.security == expected
        assert options.endpoints == (Endpoint("a", 2379),)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ca_cert": "ca"}, "'ca_cert' .* add --rdzv-conf protocol=https"),
        ({"cert": "cert", "key": "key"}, "'ssl_cert' .* add --rdzv-conf protocol=https"),
        ({"protocol": "https", "cert": "cert"}, "'ssl_cert' without 'ssl_cert_key'"),
        ({"protocol": "https", "ssl_cert_key": "key"}, "'ssl_cert_key' without 'ssl_cert'"),
        ({"protocol": "https", "ca_cert": "ca", "cacert": "cert"}, "different values"),
        ({"protocol": "https", "ca_cert": "missing"}, "'ca_cert' .* cannot be read: No such file"),
    ],
)
def test_contradictory_certificate_options(params_of, files, given, message):
    config = {name: files.get(value, value) for name, value in given.items()}
    with pytest.raises(UsageError, match=message):
        read(params_of, "a", **config)


@pytest.mark.parametrize(
    ("config", "environ"),
    [
        ({"etcd_user": "ann", "etcd_password_file": "password"}, {}),
        ({"etcd_user": "ann"}, {"PLAUNCH_ETCD_PASSWORD": "the password"}),
        ({}, {"PLAUNCH_ETCD_USER": "ann", "PLAUNCH_ETCD_PASSWORD": "the password"}),
        (
            {"etcd_user": "ann", "etcd_password_file": "password"},
            {"PLAUNCH_ETCD_USER": "bob", "PLAUNCH_ETCD_PASSWORD": "bob's"},
        ),
    ],
)
def test_user_and_password(params_of, files, config, environ, caplog):
    config = {name: files.get(value, value) for name, value in config.items()}
    options = read(params_of, "https://a", environ, **config)
    assert (options.security.user, options.security.password) == ("ann", "the password")
    assert "the password" not in repr(options)
    assert caplog.text == ""


def test_a_password_without_a_user(params_of, files):
    with pytest.raises(UsageError, match="no user; give one with --rdzv-conf etcd_user"):
        read(params_of, "a", etcd_password_file=files["password"])
    with pytest.raises(UsageError, match="in PLAUNCH_ETCD_PASSWORD, but no user"):
        read(params_of, "a", {"PLAUNCH_ETCD_PASSWORD": "x"})


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\n", "is empty"), (b"x" * 5000, "more than 4096 bytes"), (b"\xff", "not UTF-8")],
)
def test_a_password_file_without_a_password(params_of, files, content, message):
    with open(files["password"], "wb") as file:
        file.write(content)
    with pytest.raises(UsageError, match=message):
        read(params_of, "a", etcd_user="ann", etcd_password_file=files["password"])


def test_a_password_file_open_to_all_users(params_of, files, tmp_path, caplog):
    (tmp_path / "password").chmod(0o644)
    read(params_of, "https://a", etcd_user="ann", etcd_password_file=files["password"])
    assert "open to every user of this machine (mode 644)" in caplog.text


@pytest.mark.parametrize("backend", ["etcd", "etcd-v2"])
def test_options_of_c10d_are_warned_about(backend, caplog):
    pytest.importorskip("grpc")
    params = RendezvousParameters(
        backend, "localhost:1", "job", 1, 2, is_host=True, store_type="tcp"
    )
    create_etcd_handler(params).shutdown()
    for option in ("is_host", "store_type"):
        text = f"rendezvous backend {backend!r} does not need option {option!r}; it is ignored"
        assert text in caplog.messages
