"""Certificates for tests of TLS, made with the program `openssl`."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass


@dataclass(frozen=True)
class Certificates:
    """Paths of PEM files: an authority, and the certificates and keys of a server and a client."""

    ca: str
    cert: str
    key: str
    client_cert: str
    client_key: str


def create_certificates(
    folder: str,
    *,
    hosts: tuple[str, ...] = ("localhost", "127.0.0.1", "::1"),
    client: str = "root",
    key_usage: str = "critical,keyCertSign,cRLSign",
) -> Certificates:
    """Create a certificate authority, a server's certificate and a client's in `folder`.

    Args:
        folder: an existing folder.
        hosts: the names and addresses in the server's certificate.
        client: the common name in the client's, which etcd takes for a user's name.
        key_usage: the extension of the authority, which Python requires from 3.13 on; empty for
            none, as in old authorities.

    Raises:
        FileNotFoundError: `openssl` is not installed.
        RuntimeError: it has failed.
    """
    if shutil.which("openssl") is None:
        raise FileNotFoundError("openssl, which creates certificates for tests, is not on PATH")
    names = ",".join(f"{'IP' if _is_address(host) else 'DNS'}:{host}" for host in hosts)
    path = _Folder(folder)
    _openssl(
        *("req", "-x509", *_NEW, path("ca.key"), "-out", path("ca.pem"), *_subject("authority")),
        *(("-addext", f"keyUsage={key_usage}") if key_usage else ()),
    )
    _sign(
        path, "server", "server", f"subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth"
    )
    _sign(path, "client", client, "extendedKeyUsage=clientAuth")
    return Certificates(
        path("ca.pem"),
        path("server.pem"),
        path("server.key"),
        path("client.pem"),
        path("client.key"),
    )


_NEW = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout")


class _Folder:
    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __call__(self, name: str) -> str:
        return os.path.join(self._folder, name)


def _sign(path: _Folder, name: str, subject: str, extensions: str) -> None:
    with open(path(f"{name}.ext"), "w", encoding="ascii") as file:
        file.write(f"{extensions}\nauthorityKeyIdentifier=keyid\n")
    request = path(f"{name}.csr")
    _openssl("req", *_NEW, path(f"{name}.key"), "-out", request, *_subject(subject))
    _openssl(
        *("x509", "-req", "-in", request, "-out", path(f"{name}.pem"), "-days", "30"),
        *("-CA", path("ca.pem"), "-CAkey", path("ca.key"), "-CAcreateserial"),
        *("-extfile", path(f"{name}.ext")),
    )


def _subject(name: str) -> tuple[str, str]:
    return "-subj", f"/CN={name}"


def _openssl(*arguments: str) -> None:
    done = subprocess.run(
        ["openssl", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"openssl {arguments[0]} has failed: {done.stderr.strip()}")


def _is_address(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdigit()
