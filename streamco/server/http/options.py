"""Settings that every server shares: its port, key and limits."""

from __future__ import annotations

import math
import ssl

from streamco.config import Options
from streamco.endpoints.address import is_loopback
from streamco.errors import ConfigError
from streamco.server.http.api_keys import ApiKey, check_keys
from streamco.server.http.cors import ANY_ORIGIN, check_origin

__all__ = ["ListenOptions"]

_ONLY_KEY = "default"  # name of ``api_key``
_LAST_PORT = 65535  # uvloop takes larger ones modulo 65536


class ListenOptions(Options, frozen=True, kw_only=True):
    """Settings of a server's port, key and limits."""

    host: str = "127.0.0.1"
    port: int = 0  # 0 for any free port
    api_key: str | None = None  # None to serve every client that can connect
    allow_open: bool = False  # listen beyond loopback without a key; never by default
    cors: tuple[str, ...] = ()  # origins of web pages that may call from a browser, or "*" with a key
    max_body_bytes: int = 1 << 20  # a prompt of a million characters is far beyond any context here
    max_streams: int = 64  # requests running or queued; any more get 429
    retry_after: float = 1.0  # seconds a refused client is asked to wait
    keepalive: float = 10.0  # seconds of silence before a comment is sent; proxies cut idle connections after 30 to 100
    idle_timeout: float = 75.0  # seconds a connection may go without a whole request head; otherwise slow clients would keep descriptors
    reader_timeout: float | None = 60.0  # seconds one write may wait for the reader before the connection is dropped; None for no limit
    health_timeout: float = 5.0  # seconds that the engine's thread has to respond to a health probe before the answer is 503
    shutdown: float = 5.0  # seconds that handlers have to end their streams
    metrics: bool = True  # answer GET /metrics, which needs a key like the API
    tls_cert: str | None = None  # PEM file of the certificate chain, or None for plain HTTP
    tls_key: str | None = None  # PEM file of its key, or None if the key is in the certificate's file

    def __post_init__(self) -> None:
        for field, minimum in (("port", 0), ("max_body_bytes", 1), ("max_streams", 1), ("retry_after", 0)):
            if getattr(self, field) < minimum:
                raise ConfigError(f"{field}: expected at least {minimum}, got {getattr(self, field)}")
        if self.port > _LAST_PORT:
            raise ConfigError(f"port: expected at most {_LAST_PORT}, got {self.port}")
        for field in ("keepalive", "idle_timeout", "reader_timeout", "health_timeout", "shutdown"):
            value = getattr(self, field)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{field}: expected seconds > 0, got {value}")
        for origin in self.cors:
            check_origin(origin)
        check_keys(self.keys)
        if ANY_ORIGIN in self.cors and not self.has_key:
            raise ConfigError("cors: expected an api key with *, got none: every web page could use this server")
        if self.tls_key is not None and self.tls_cert is None:
            raise ConfigError("tls_key: only valid with a tls_cert")

    @property
    def keys(self) -> tuple[ApiKey, ...]:
        """Keys that are accepted; empty if none is needed."""
        return () if self.api_key is None else (ApiKey(_ONLY_KEY, self.api_key),)

    @property
    def has_key(self) -> bool:
        """True if clients need a key."""
        return bool(self.keys)

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the TLS context for the listening socket, or None for plain HTTP.

        Raises:
            ConfigError: a file can't be read, or doesn't contain a certificate or key.
        """
        if self.tls_cert is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self.tls_cert, self.tls_key, password="")  # OpenSSL would ask the terminal for a passphrase
        except OSError as error:  # includes OpenSSL's errors
            shown = self.tls_cert if self.tls_key is None else f"{self.tls_cert} and {self.tls_key}"
            raise ConfigError(f"tls: expected a certificate and its key in PEM, got {error.strerror or error} at {shown}") from error
        return context

    def check_exposure(self) -> None:
        """Refuse to serve other machines by accident. Called before the server listens.

        Raises:
            ConfigError: the host isn't loopback, there is no key, and ``allow_open`` is off.
        """
        if not self.has_key and not self.allow_open and not is_loopback(self.host):
            raise ConfigError(f"host: expected a loopback address while no api key is set, got {self.host}")

    def __repr__(self) -> str:
        """Show all options except the key, because reprs end up in logs."""
        shown = [f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name != "api_key"]  # an ``ApiKey`` hides its key
        return f"{type(self).__name__}({', '.join(shown)}, api_key={'***' if self.api_key else None})"
