"""The client's mode "split": one endpoint that has a model's ends on the device and its middle at servers (docs/split.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from streamco.errors import ConfigError

__all__ = ["check_split", "split_endpoint"]


def check_split(settings: Mapping[str, object]) -> None:
    """Check that no setting is given that has no effect on answers of a split model; None: not given.

    Raises:
        ConfigError: one is given.
    """
    for name, value in settings.items():
        if value is not None:
            raise ConfigError(f'{name}: expected none with mode="split", in which one endpoint makes the whole answer, got {value!r}')


def split_endpoint(device: object, server: object) -> Any:
    """Return the endpoint of a split model.

    Args:
        device: common beginning of the parts' files, or a ``SplitEndpoint``, which has its servers.
        server: URL of a split server, or several; None: the endpoint has them.

    Raises:
        ConfigError: one of the two is missing, or something else.
    """
    from streamco.endpoints.split.endpoint import SplitEndpoint

    if isinstance(device, SplitEndpoint):
        if server is not None:
            raise ConfigError(f"server: expected none beside a SplitEndpoint, which has its servers, got {server!r}")
        return device
    if not isinstance(device, str | Path):
        raise ConfigError(f'device: expected the beginning of the parts\' files ("parts/NAME") or a SplitEndpoint, got {device!r}')
    urls = [server] if isinstance(server, str) else server
    if not isinstance(urls, Sequence) or not urls or not all(isinstance(url, str) for url in urls):
        raise ConfigError(f"server: expected the URL of a split server, or several, got {server!r}")
    return SplitEndpoint(device, urls)
