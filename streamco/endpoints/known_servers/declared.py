"""What a caller declares about a server's abilities: all of them, or single ones beside what is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

import msgspec

from streamco.endpoints.base import Capabilities, Continuation
from streamco.errors import ConfigError
from streamco.events import PreCopy

__all__ = ["CapabilityChanges", "check_declared", "with_declared", "with_inputs_of"]


class CapabilityChanges(TypedDict, total=False):
    """Single fields of ``Capabilities``; those that are left out stay as they are known."""

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
    """Check what an endpoint is given as ``capabilities``.

    Raises:
        ConfigError: it is none of the three, or has an unknown field or a value of another type.
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
    """Return a server's abilities.

    Args:
        known: what is known of such servers.
        declared: all abilities, which replace those; or single ones, which change them; None: nothing was declared.
    """
    if isinstance(declared, Capabilities):
        return declared
    return msgspec.structs.replace(known, **declared) if declared else known


def with_inputs_of(known: Capabilities, before: Capabilities) -> Capabilities:
    """Return the abilities of a server that is known now, with what it was sent before: it refuses itself what it can't do."""
    return msgspec.structs.replace(
        known,
        tools=known.tools or before.tools,
        json_schema=known.json_schema or before.json_schema,
        images=known.images or before.images,
        choices=known.choices or before.choices,
    )
