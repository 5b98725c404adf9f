"""Problems with an endpoint are diagnosed, and reported in time."""

from __future__ import annotations

import contextlib
import http.server
import itertools
import os
import socket
import ssl
import threading
import time

import pytest
from plaunch.errors import ExitCode, RendezvousConnectionError
from plaunch_rendezvous_etcd import EtcdAccessError, create_etcd_handler
from plaunch_rendezvous_etcd.testing import EtcdServer, create_certificates, free_ports

from helpers.calls import Call


@contextlib.contextmanager
def answering(body):
    """An HTTP server that is not etcd, or an old one."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if body else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def silent():
    """A port that accepts connections, and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@contextlib.contextmanager
def dripping(text=b""):
    """A port that sends an endless answer byte by byte."""
    done = threading.Event()

    def drip(sock):
        with sock, contextlib.suppress(OSError):
            for number in itertools.count():
                sock.sendall(text[number : number + 1] or b"x")
                if done.wait(0.1):
                    return

    def serve(server):
        with contextlib.suppress(OSError):
            while True:
                threads.append(threading.Thread(target=drip, args=(server.accept()[0],)))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threads = [threading.Thread(target=serve, args=(server,))]
        threads[0].start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            done.set()
            server.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()


@contextlib.contextmanager
def refusing():
    """A port on which nothing listens."""
    (port,) = free_ports("127.0.0.1", 1)
    yield f"127.0.0.1:{port}"


@pytest.fixture
def fails(params_of):
    """Check the error of `next_rendezvous`; return the seconds it took."""

    def fails(endpoint, pattern, *, connect_timeout=60, **config):
        params = params_of(endpoint, connect_timeout=connect_timeout, **config)
        handler = create_etcd_handler(params)
        began = time.monotonic()
        try:
            with pytest.raises(EtcdAccessError, match=pattern) as raised:
                handler.next_rendezvous()
        finally:
            handler.shutdown()
        assert raised.value.exit_code == ExitCode.CONTROL_PLANE_LOST
        assert endpoint in str(raised.value)
        return str(raised.value), time.monotonic() - began

    return fails


@pytest.mark.parametrize(
    ("server", "config", "expected"),
    [
        (lambda: answering(b'{"etcdserver":"2.3.8"}'), {}, r"etcd 2\.3\.8, which has the v2 API"),
        (
            lambda: answering(b"<html>"),
            {},
            r"is not etcd: it answers 'HTTP/1.0 200 OK'.*check host",
        ),
        (lambda: answering(b""), {}, r"is not etcd: it answers 'HTTP/1.0 404"),
        (
            lambda: answering(b""),
            {"protocol": "https"},
            r"does not speak TLS; check --rdzv-conf protocol=https",
        ),
    ],
)
def test_endpoints_that_are_not_etcd_are_reported_at_once(fails, server, config, expected):
    with server() as endpoint:
        _, seconds = fails(endpoint, expected, **config)
    assert seconds < 30


@pytest.mark.parametrize("protocol", ["http", "https"])
@pytest.mark.parametrize(
    ("server", "expected"),
    [
        (refusing, r"Connection refused; check that etcd runs and listens there"),
        (silent, r"takes connections but does not answer: it is stopped, or it is not etcd"),
    ],
)
def test_an_endpoint_that_does_not_answer_is_given_up_in_time(fails, server, expected, protocol):
    with server() as endpoint:
        text, seconds = fails(endpoint, expected, connect_timeout=2, protocol=protocol)
    assert "within 2 s (--rdzv-conf connect_timeout)" in text
    assert 1 < seconds < 5


@pytest.mark.parametrize("protocol", ["http", "https"])
@pytest.mark.parametrize(
    "text", [b"HTTP/1.1 200 OK\r\n", b"\x16\x03\x03\x40\x00", b"\x00\x00\x04\x04"]
)
def test_an_endpoint_that_answers_byte_by_byte_is_given_up_in_time(fails, text, protocol):
    """The limit is for the whole answer."""
    with dripping(text) as endpoint:
        _, seconds = fails(endpoint, ".", connect_timeout=1, protocol=protocol)
        assert seconds < 30.0  # byte by byte, it would take hours


def test_a_name_that_has_no_address(fails):
    message = r"'no-such-host.invalid' (has no address|\S+ name server)"
    fails("no-such-host.invalid:2379", message, connect_timeout=1)


def test_a_server_that_starts_late_is_found(params_of, own_etcd_server):
    own_etcd_server.kill()
    handler = create_etcd_handler(params_of(own_etcd_server.endpoint, connect_timeout=60))
    starter = threading.Timer(0.5, own_etcd_server.start)
    starter.start()
    try:
        assert handler.next_rendezvous().world_size == 1
    finally:
        starter.join()
        handler.leave()


# --- certificates ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def foreign(tmp_path_factory, certificates):
    """Certificates of another authority, for another host."""
    folder = str(tmp_path_factory.mktemp("foreign"))
    return create_certificates(folder, hosts=("another.example",))


@pytest.fixture(scope="module")
def mutual_server(etcd_server, certificates):
    with EtcdServer(certificates=certificates, wants_client_certificate=True) as server:
        yield server


def test_a_certificate_of_another_authority(fails, secure_server, secure, foreign):
    message = r"certificate of \S+ is not accepted: .*check that ca_cert \("
    fails(secure_server.endpoint, message, **{**secure, "ca_cert": foreign.ca})


def test_a_certificate_for_another_host(fails, foreign):
    message = r"not accepted: .*IP address mismatch.*it is for '127.0.0.1'"
    with EtcdServer(certificates=foreign) as server:
        fails(server.endpoint, message, protocol="https", ca_cert=foreign.ca)


def test_a_server_with_tls_needs_the_option(fails, secure_server):
    fails(secure_server.endpoint, "speaks TLS only; add --rdzv-conf protocol=https")


def test_tls_to_a_server_without_it(fails, etcd_server, certificates):
    fails(etcd_server.endpoint, "does not speak TLS", protocol="https", ca_cert=certificates.ca)


@pytest.mark.parametrize("own", ["none", "foreign"])
def test_a_client_certificate_that_etcd_rejects(fails, mutual_server, certificates, foreign, own):
    config = {"protocol": "https", "ca_cert": certificates.ca}
    if own != "none":
        config |= {"ssl_cert": foreign.client_cert, "ssl_cert_key": foreign.client_key}
    expected = "whether it wants a client certificate" if own == "none" else "check ssl_cert"
    fails(mutual_server.endpoint, f"refused the TLS handshake: .*{expected}", **config)


def test_an_authority_that_only_python_rejects_is_not_blamed(fails, monkeypatch, tmp_path):
    create = ssl.create_default_context

    def strict(**settings):  # as it is from Python 3.13 on
        context = create(**settings)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)
    old = create_certificates(str(tmp_path), key_usage="")
    with EtcdServer(certificates=old, wants_client_certificate=True) as server:
        fails(server.endpoint, "refused the TLS handshake", protocol="https", ca_cert=old.ca)


@pytest.mark.parametrize(
    "names", [("ca_cert", "ssl_cert", "ssl_cert_key"), ("cacert", "cert", "key")]
)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_both_spellings_of_the_certificates_work(prepare, mutual_server, certificates, names, host):
    paths = (certificates.ca, certificates.client_cert, certificates.client_key)
    endpoint = f"{host}:{mutual_server.port}"
    backend = prepare(endpoint, protocol="https", **dict(zip(names, paths, strict=True)))
    assert backend.connect().add("n", 1) >= 1


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "SSL_CERT_DIR"])
def test_without_ca_cert_the_systems_authorities_are_trusted(
    prepare, fails, secure_server, secure, certificates, variable, monkeypatch, tmp_path
):
    config = {key: value for key, value in secure.items() if key != "ca_cert"}
    fails(secure_server.endpoint, r"is not accepted: .*ca_cert \(none was given\)", **config)
    folder = tmp_path / "certs"
    folder.mkdir()
    (folder / "deadbeef.0").symlink_to(certificates.ca)
    (folder / "deadbeef.1").symlink_to("nowhere")
    (folder / "README").write_text("no certificate")
    path = certificates.ca if variable == "SSL_CERT_FILE" else str(folder)
    monkeypatch.setenv(variable, path)
    assert prepare(secure_server.endpoint, **config).connect().add("n", 1) >= 1


def test_a_key_that_does_not_match_the_certificate(fails, mutual_server, certificates):
    config = {"ssl_cert": certificates.client_cert, "ssl_cert_key": certificates.key}
    message = "certificate files cannot be used: .*check ca_cert, ssl_cert and"
    fails(mutual_server.endpoint, message, protocol="https", ca_cert=certificates.ca, **config)


# --- users ----------------------------------------------------------------------------------------


def test_a_wrong_password(fails, secure_server, secure, tmp_path):
    path = tmp_path / "password"
    path.write_text("another password")
    path.chmod(0o600)
    config = {**secure, "etcd_password_file": str(path)}
    message = "does not know user 'ann' with this password; check etcd_user"
    text, _ = fails(secure_server.endpoint, message, **config)
    assert "another password" not in text


def test_a_missing_user(fails, secure_server, secure):
    config = {key: value for key, value in secure.items() if not key.startswith("etcd_")}
    message = "wants a user and a password; give --rdzv-conf etcd_user"
    fails(secure_server.endpoint, message, **config)


def test_a_prefix_that_the_user_may_not_use(fails, secure_server, secure):
    message = "does not let user 'ann' read keys below /elsewhere/; grant a role"
    fails(secure_server.endpoint, message, etcd_prefix="/elsewhere", **secure)


def test_the_password_may_come_from_the_environment(prepare, secure_server, secure, monkeypatch):
    monkeypatch.setenv("PLAUNCH_ETCD_USER", secure.pop("etcd_user"))
    with open(secure.pop("etcd_password_file")) as file:
        monkeypatch.setenv("PLAUNCH_ETCD_PASSWORD", file.read().strip())
    assert prepare(secure_server.endpoint, **secure).connect().add("n", 1) >= 1


def test_a_login_that_has_expired_is_renewed(prepare, secure_server, secure):
    one, other = (prepare(secure_server.endpoint, **secure).connect() for _ in range(2))
    one.set("login", b"x")
    call = Call(other.wait, "after the login", 60)
    # The server's logins expire after three seconds.
    assert not call.ended(8)
    assert other.multi_get(["login"]) == [b"x"]
    again = Call(other.wait, "after the login too", 60)
    assert not again.ended(0.3)
    one.multi_set({"after the login": b"1", "after the login too": b"2"})
    assert call.ended()
    assert again.ended()
    assert (call.result, again.result) == (b"1", b"2")
    one.delete("after the login")
    one.delete("after the login too")


def test_a_user_for_a_server_without_authentication_is_harmless(
    prepare, etcd_server, password_file, caplog
):
    options = {"etcd_user": "ann", "etcd_password_file": password_file}
    backend = prepare(etcd_server.endpoint, **options)
    assert backend.connect().add("n", 1) >= 1
    assert "is sent unencrypted" in caplog.text


def test_a_password_over_plain_text_works(prepare, password_file, caplog):
    with EtcdServer(users={"ann": "ann's password"}) as server:
        backend = prepare(server.endpoint, etcd_user="ann", etcd_password_file=password_file)
        assert backend.connect().add("n", 1) == 1
    assert "is sent unencrypted" in caplog.text
    assert "ann's password" not in caplog.text


# --- endpoints ------------------------------------------------------------------------------------


def test_ipv6(prepare):
    if not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("this machine has no IPv6")
    with EtcdServer(host="::1") as server:
        assert server.endpoint.startswith("[::1]:")
        assert prepare(server.endpoint).connect().add("n", 1) == 1


def test_one_good_endpoint_is_enough(prepare, etcd_server):
    with refusing() as dead, silent() as stuck, answering(b"") as other:
        endpoint = ",".join([dead, stuck, other, etcd_server.endpoint])
        for _ in range(4):
            assert prepare(endpoint).connect().add("n", 1) >= 1


def test_all_endpoints_are_reported_if_none_works(fails):
    with refusing() as one, answering(b"") as other:
        text, _ = fails(f"{one},{other}", "Connection refused", connect_timeout=1)
    assert "is not etcd" in text


def test_a_client_that_is_released_while_it_connects(prepare):
    with silent() as endpoint:
        backend = prepare(endpoint, connect_timeout=60)
        call = Call(backend.connect)
        assert not call.ended(0.2)
        backend.release()
        assert call.ended()
        assert isinstance(call.error, RendezvousConnectionError)
