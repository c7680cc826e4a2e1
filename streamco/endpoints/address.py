"""Works out a server's address and key from arguments, the environment and the provider's entry."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol
from urllib.parse import SplitResult, quote, urlsplit, urlunsplit

from msgspec import Struct

from streamco.endpoints.known_servers.providers import GENERIC, Provider, find_provider
from streamco.endpoints.network.credentials import ApiKey, check_key
from streamco.endpoints.network.headers import check_header_value
from streamco.errors import ConfigError

if TYPE_CHECKING:
    from yarl import URL

__all__ = [
    "Address",
    "Url",
    "account_headers",
    "find_address",
    "host_of",
    "is_loopback",
    "is_url",
    "parse_url",
    "read_key",
    "split_url",
    "url_text",
    "without_password",
]

_AZURE_VERSION = "2024-10-21"  # the first stable version with stream_options
_LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))


@lru_cache(maxsize=64)  # servers call it for each request
def is_loopback(host: str) -> bool:
    """Return True if this host is definitely this machine: "localhost", 127.0.0.0/8 or ::1, with or without brackets.

    Any other name, even "127.0.0.1.example.com" or "api.localhost", may resolve to any address.
    """
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return any(address in network for network in _LOOPBACK)


def is_url(device: str) -> bool:
    """Return True if a device's name is the URL of a server rather than the path of a file."""
    return device.lower().startswith(("http://", "https://"))


@lru_cache(maxsize=64)  # called for each request, with few different URLs
def parse_url(text: str) -> URL:
    """Parse a URL whose text is already encoded, without encoding it again."""
    from yarl import URL

    return URL(text, encoded=True)


class UrlObject(Protocol):
    """A URL object such as ``yarl.URL``, ``httpx.URL`` or one of pydantic's types; ``str`` returns its text."""

    @property
    def scheme(self) -> str:
        """The scheme, without the colon."""
        ...

    @property
    def host(self) -> str | None:
        """The host name, without the port."""
        ...


Url = str | UrlObject


def url_text(setting: str, url: Url) -> str:
    """Return a URL as a string.

    Args:
        setting: name of the setting, for the error message.
        url: a string or a URL object.

    Raises:
        ConfigError: the value is neither of the two.
    """
    if isinstance(url, str):
        return url
    if not (hasattr(url, "scheme") and hasattr(url, "host")):
        raise ConfigError(f"{setting}: expected a string or a URL, got {type(url).__name__}")
    return str(url)


class Address(Struct, frozen=True):
    """A server's address, without its key.

    Args:
        provider: the facts that are known about this provider's servers.
        base_url: scheme, host, port and path, without a trailing slash and without credentials.
        query: appended to every URL (Azure's ``api-version``), or "".
    """

    provider: Provider
    base_url: str
    query: str = ""

    @property
    def host(self) -> str:
        """The host name in lower case, without the port."""
        return urlsplit(self.base_url).hostname or ""

    @property
    def label(self) -> str:
        """A label for the server: the provider's name, or host and port if the provider is unknown."""
        return urlsplit(self.base_url).netloc if self.provider is GENERIC else self.provider.name

    def url(self, path: str, *, model: str = "", base_url: str | None = None) -> str:
        """Return the URL of ``path`` below the base URL. An Azure URL contains the name of a deployment, which is the model's name.

        The name is escaped, so that a caller who chooses the model can't reach another path, query or deployment with the endpoint's key.

        Raises:
            ConfigError: the model is "." or "..", which URLs resolve and which can't be escaped.
        """
        base = base_url or self.base_url
        if self.provider.name == "azure" and base.endswith("/openai") and path != "/models":
            if model in {".", ".."}:
                raise ConfigError(f"model: expected a deployment's name, got {model!r}")
            base += f"/deployments/{quote(model, safe='')}"
        return base + path + (f"?{self.query}" if self.query else "")

    def root_url(self, path: str) -> str:
        """Return the URL of ``path`` below the server's root, outside its API."""
        parts = urlsplit(self.base_url)
        return urlunsplit((parts.scheme, parts.netloc, parts.path.removesuffix("/v1") + path, "", ""))


def find_address(
    base_url: Url | None, api_key: ApiKey | None, provider: str | None, environ: Mapping[str, str] = os.environ
) -> tuple[Address, ApiKey | None]:
    """Return a server's address and the key to use there; the key may be None.

    A base URL that isn't given comes from the provider's variable or default; without a provider, it is ``OPENAI_BASE_URL`` or OpenAI's. A
    key from the environment is sent only to its own provider, because each known provider has its own variable. A loopback server given as
    an argument gets no key from the environment.

    Raises:
        ConfigError: the URL is missing or malformed, the provider is unknown, or the key is missing or malformed.
    """
    named = find_provider(provider) if provider is not None else None
    if api_key is not None:
        check_key("api_key", api_key)
    given = "" if base_url is None else url_text("base_url", base_url)
    parts = _split(given or _read_default_url(named or find_provider("openai"), environ))
    host = (parts.hostname or "").lower()
    known = named or find_provider(host=host)
    address = Address(known, *_complete(parts, known, environ))
    is_given = base_url is not None
    key = api_key if api_key is not None else None if is_loopback(host) and is_given else environ.get(known.key_variable)
    if not key and api_key is None and not is_loopback(host):
        raise ConfigError(f'api_key: expected a key for {host}, got none; set {known.key_variable} or pass api_key ("" for no key)')
    if key is not None and api_key is None:
        check_key(known.key_variable, key)
    return address, key or None


def account_headers(
    address: Address,
    organization: str | None,
    project: str | None,
    *,
    is_default: bool,
    environ: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """Return the headers that say which organisation and project of an OpenAI account pays.

    Args:
        address: the server's address.
        organization: the organisation's id; "" sends none. None uses ``OPENAI_ORG_ID``.
        project: the project's id; "" sends none. None uses ``OPENAI_PROJECT_ID``.
        is_default: True if neither a URL nor a provider was named, so that the address is ``OPENAI_BASE_URL`` or OpenAI's.
        environ: the environment. Its ids are used only for OpenAI.

    Raises:
        ConfigError: an id isn't valid in a header.
    """
    is_openais = address.provider.name == "openai" or (is_default and address.provider is GENERIC)  # a gateway to OpenAI
    found = {}
    for header, argument, variable, given in (
        ("OpenAI-Organization", "organization", "OPENAI_ORG_ID", organization),
        ("OpenAI-Project", "project", "OPENAI_PROJECT_ID", project),
    ):
        value = given if given is not None else environ.get(variable) if is_openais else None
        if value:
            check_header_value(variable if given is None else argument, value)
            found[header] = value
    return found


def read_key(variable: str, *, setting: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the key in an environment variable.

    Args:
        variable: the variable's name.
        setting: name of the setting that names the variable, for the error message.
        environ: the environment.

    Raises:
        ConfigError: the variable isn't set, or the text isn't a variable's name. The text isn't repeated, because it may be a key.
    """
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
        raise ConfigError(f"{setting}: expected the name of an environment variable, got something else (a key does not belong here)")
    key = environ.get(variable, "")
    if not key:
        raise ConfigError(f"{setting}: expected a key in the environment variable {variable}, got none")
    return key


def _read_default_url(provider: Provider, environ: Mapping[str, str]) -> str:
    value = environ.get(provider.url_variable, "") if provider.url_variable else ""
    url = value.strip() or provider.base_url
    if not url:
        hint = f"; set {provider.url_variable} or pass base_url" if provider.url_variable else ""
        raise ConfigError(f"base_url: expected the server's URL for provider {provider.name!r}, got none{hint}")
    return url


def host_of(url: str) -> str:
    """Return a URL's host, or "" if it has none or is malformed."""
    try:
        return urlsplit(url.strip()).hostname or ""
    except ValueError:
        return ""


def split_url(url: str, schemes: Collection[str]) -> SplitResult | None:
    """Return the parts of a server's URL, or None if it is malformed, has no host or isn't ``http`` or ``https``."""
    try:
        parts = urlsplit(url.strip())
        is_good = parts.scheme in schemes and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return None
    return parts if is_good else None


def without_password(url: str) -> str:
    """Return a URL, which may be malformed, without its user name and password, for errors."""
    text = url.strip()
    scheme = text[: text.find("://") + 3] if "://" in text else ""
    return scheme + text.removeprefix(scheme).rpartition("@")[2]


def _split(url: str) -> SplitResult:
    parts = split_url(url, ("http", "https"))
    if parts is None:
        raise ConfigError(f'base_url: expected a URL like "https://host/v1", got {without_password(url)!r}')
    if "@" in parts.netloc:
        raise ConfigError(f"base_url: expected no user name or password in it, got one for {parts.hostname}; pass api_key or headers")
    return parts


def _complete(parts: SplitResult, provider: Provider, environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the base URL and the query after adding parts that are often left out: Azure's path and version, and ``/v1`` for others."""
    path = parts.path.rstrip("/")
    query = parts.query
    if provider.name == "azure":
        path = path or "/openai"
        if not path.endswith("/v1") and "api-version=" not in query:
            version = f"api-version={environ.get('OPENAI_API_VERSION', _AZURE_VERSION)}"
            query = f"{query}&{version}" if query else version
    elif not path and provider.base_url is None:
        path = "/v1"
    return urlunsplit((parts.scheme, parts.netloc, path, "", "")), query
