"""A caller's declaration of a server's capabilities: all of them, or only those that differ from what is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

import msgspec

from streamco.endpoints.base import Capabilities, Continuation
from streamco.errors import ConfigError
from streamco.events import PreCopy

__all__ = ["CapabilityChanges", "check_declared", "with_declared", "with_inputs_of"]


class CapabilityChanges(TypedDict, total=False):
    """Some of the fields of ``Capabilities``; missing ones keep their known values."""

    vocabulary: str | None
    takes_token_ids: bool
    continuation: Continuation
    pre_copy: PreCopy
    tools: bool
    json_schema: bool
    images: bool
    choices: bool
    context_tokens: int | None


def check_declared(declared: object) -> None:
    """Check an endpoint's ``capabilities`` argument.

    Raises:
        ConfigError: the argument isn't ``Capabilities``, a dict or None, or has an unknown field or a value of the wrong type.
    """
    if declared is None or isinstance(declared, Capabilities):
        return
    if not isinstance(declared, Mapping):
        raise ConfigError(f"capabilities: expected Capabilities, a mapping of single ones or None, got {type(declared).__name__}")
    for name in declared:
        if name not in Capabilities.__struct_fields__:
            raise ConfigError(f"capabilities: expected names among {', '.join(Capabilities.__struct_fields__)}, got {name!r}")
    try:
        msgspec.convert(dict(declared), Capabilities)
    except msgspec.ValidationError as error:
        raise ConfigError(f"capabilities: {error}") from error


def with_declared(known: Capabilities, declared: Capabilities | CapabilityChanges | None) -> Capabilities:
    """Return a server's capabilities.

    Args:
        known: what is known about such servers.
        declared: all capabilities, which replace the known ones; a dict of some of them, which override the known ones; or None.
    """
    if isinstance(declared, Capabilities):
        return declared
    return msgspec.structs.replace(known, **declared) if declared else known


def with_inputs_of(known: Capabilities, before: Capabilities) -> Capabilities:
    """Return a newly identified server's capabilities, plus tools, schemas, images and choices if assumed before; it can refuse these."""
    return msgspec.structs.replace(
        known,
        tools=known.tools or before.tools,
        json_schema=known.json_schema or before.json_schema,
        images=known.images or before.images,
        choices=known.choices or before.choices,
    )
