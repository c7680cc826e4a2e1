"""A self-signed certificate for 127.0.0.1 and localhost, valid for a hundred years; its key protects nothing."""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path

__all__ = ["client_context", "server_context", "write_certificate"]

_CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBmzCCAUGgAwIBAgIUGbLmQDqs2ixBycZtS5fD9LwI5xYwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyMTEwMTcwN1oYDzIxMjYxMDI4
MTAxNzA3WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAASIItTJ/qXDvjv6FPgaJy1gZJAaKuUREO7Vp/szJ2o+8RIaevkY79eY
gm2CgDzy+fwqClEadCZNg9MO1ukLmv4uo28wbTAdBgNVHQ4EFgQUaU6IIhZyJMXq
qj2jPOmWyZz2BTkwHwYDVR0jBBgwFoAUaU6IIhZyJMXqqj2jPOmWyZz2BTkwDwYD
VR0TAQH/BAUwAwEB/zAaBgNVHREEEzARgglsb2NhbGhvc3SHBH8AAAEwCgYIKoZI
zj0EAwIDSAAwRQIhAM/jjalAaA0b0Wz+6GPHx69M+TL7pYWvFJIHij7VVIYGAiAf
rzlp6saDB+lSZ+qdfPJiwjbEmHC+0oXZ3a6WRx0TQw==
-----END CERTIFICATE-----
"""

_KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgxBXLDr/2AdeuziZP
KC4TnQYqvq6p7AxVbakGaxwdS32hRANCAASIItTJ/qXDvjv6FPgaJy1gZJAaKuUR
EO7Vp/szJ2o+8RIaevkY79eYgm2CgDzy+fwqClEadCZNg9MO1ukLmv4u
-----END PRIVATE KEY-----
"""


def server_context() -> ssl.SSLContext:
    """For a server that shows the certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:  # the ssl module takes certificates from files only
        context.load_cert_chain(write_certificate(Path(folder)))
    return context


def write_certificate(folder: Path) -> Path:
    """A PEM file with the certificate and its key."""
    path = folder / "certificate.pem"
    path.write_text(_CERTIFICATE + _KEY)
    return path


def client_context() -> ssl.SSLContext:
    """For a client that trusts it."""
    return ssl.create_default_context(cadata=_CERTIFICATE)
