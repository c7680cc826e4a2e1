"""Finds the proxy for a server in the environment, as httpx does: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY.

A wrong result would send a prompt and its key through a machine that must not see them, or past one that they must go through. Where httpx
only compares strings, this goes further: ``10.0.0.0/8`` is a network, and ``host:443`` also matches ``https://host``.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit
from urllib.request import getproxies, getproxies_environment, proxy_bypass

from streamco.errors import ConfigError

__all__ = ["find_proxy"]

_PORTS = {"http": 80, "https": 443}


def find_proxy(scheme: str, host: str, port: int) -> str | None:
    """Return the URL of the proxy for a server, or None to connect directly. Blocks, because it may read the system's settings.

    Args:
        scheme: "http" or "https".
        host: the server's host name or address, without brackets.
        port: the server's port.

    Raises:
        ConfigError: the proxy is of a kind that can't be used, such as SOCKS.
    """
    settings = getproxies()  # from the environment, or else from Windows or macOS
    name = next((each for each in (scheme, "all") if settings.get(each)), None)
    if name is None or _is_exempt(settings.get("no", ""), scheme, host.lower().rstrip("."), port):
        return None
    if not getproxies_environment() and proxy_bypass(host):
        return None
    return _checked(name, settings[name])


def _checked(name: str, setting: str) -> str:
    """Return a proxy's URL, with ``http://`` if it has no scheme."""
    url = setting if "://" in setting else f"http://{setting}"
    try:
        parts = urlsplit(url)
        is_right = parts.scheme.lower() in _PORTS and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_right = False
    if not is_right:
        scheme, separator, rest = url.partition("://")
        shown = scheme + separator + rest.rpartition("@")[2]  # a password may contain any characters
        raise ConfigError(f'{name.upper()}_PROXY: expected a URL like "http://host:3128", got {shown!r}, not a proxy for HTTP')
    return url


def _is_exempt(setting: str, scheme: str, host: str, port: int) -> bool:
    """Return True if an entry of NO_PROXY names this server."""
    return any(entry == "*" or _names(entry, scheme, host, port) for each in setting.split(",") if (entry := each.strip().lower()))


def _names(entry: str, scheme: str, host: str, port: int) -> bool:
    wanted_scheme, separator, rest = entry.rpartition("://")
    if separator and wanted_scheme not in {"all", scheme}:
        return False
    name, wanted_port = _split_port(rest.rstrip("/"))
    if wanted_port is not None and wanted_port != port:
        return False
    try:
        network = ipaddress.ip_network(name, strict=False)
    except ValueError:
        return host == name or (_is_below(host, name) and (not separator or name.startswith((".", "*"))))
    try:
        return ipaddress.ip_address(host) in network
    except ValueError:
        return False  # a name may resolve to any address


def _split_port(entry: str) -> tuple[str, int | None]:
    """Return the name or network in an entry, without brackets, and its port or None."""
    if entry.startswith("["):
        name, _, rest = entry[1:].partition("]")
        port = rest.removeprefix(":")
        return name, int(port) if port.isdecimal() else None
    name, separator, port = entry.rpartition(":")
    if separator and ":" not in name and port.isdecimal():
        return name, int(port)
    return entry, None


def _is_below(host: str, name: str) -> bool:
    """Return True if a host is this domain or a subdomain; if the domain begins with a dot or ``*.``, only subdomains count."""
    if name in {"", "*"}:
        return bool(name)
    if name.startswith((".", "*.")):
        return host.endswith(name.removeprefix("*"))
    return host == name or (host.endswith(f".{name}") and name != "localhost")
