"""The base of the response types: dumps like those of OpenAI's SDK, and a server's undeclared fields.

The package says which fields the types declare. Any other field is an attribute of a subclass (``with_further``), so ordinary chunks pay
nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import cache
from operator import attrgetter
from typing import Any, ClassVar, Literal, TypeVar, cast

import msgspec
from msgspec import Struct, field

__all__ = ["ResponseModel", "further_fields", "with_further", "without_further"]

_FURTHER = "further"  # the field that holds what a server sent beyond the declared fields


class ResponseModel(Struct, gc=False):
    """Base of the response types, with the methods of OpenAI's SDK that turn a response into a dict or JSON.

    The results have OpenAI's fields. A declared field that OpenAI doesn't have is left out unless it is set. A server's undeclared fields
    are included unchanged. There is no ``__getattr__`` here, because it would make reading any attribute six times slower.
    A struct can't tell whether a server sent null or nothing. So "unset" means null here, except for the fields that servers always
    send (``finish_reason``, and ``content`` of a message).
    """

    openai_fields: ClassVar[tuple[str, ...]] = ()
    """OpenAI's fields of this object; the ones that aren't declared here are null."""
    sent_nulls: ClassVar[frozenset[str]] = frozenset()
    """Fields that servers send even when they are null."""
    undumped: ClassVar[frozenset[str]] = frozenset()
    """Fields that aren't part of a response."""

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yield the name and value of each field, as pydantic's models do, so that ``dict(answer)`` and FastAPI's encoder work.

        They are the same fields as in ``model_dump``, but nested objects stay objects.
        """
        return iter(_fields(self).items())

    @property
    def model_extra(self) -> dict[str, Any]:
        """The fields that the server sent beyond OpenAI's, by name; each is also an attribute."""
        own = _own_fields(type(self))
        found = {name: item for name, default in own.items() if (item := getattr(self, name)) != default and name not in self.undumped}
        found.pop(_FURTHER, None)
        return found | further_fields(self)

    def model_dump(
        self,
        *,
        mode: Literal["python", "json"] = "python",
        include: Collection[str] | None = None,
        exclude: Collection[str] | None = None,
        by_alias: bool | None = None,
        exclude_unset: bool = False,
        exclude_defaults: bool = False,
        exclude_none: bool = False,
        warnings: bool = True,
    ) -> dict[str, Any]:
        """Return the object as a dict, nested objects included.

        Args:
            mode: "json" returns only values that JSON can represent.
            include: names of the fields to keep, on this object only; None keeps all.
            exclude: names of the fields to leave out, on this object only; None leaves out none.
            by_alias: no effect, because no field has an alias.
            exclude_unset: leave out fields that the server didn't send.
            exclude_defaults: leave out fields that are null.
            exclude_none: leave out fields that are null.
            warnings: no effect, because there are none.
        """
        dumped = _dump(self, keep_nulls="none" if exclude_none or exclude_defaults else "sent" if exclude_unset else "all")
        if include is not None or exclude is not None:
            dropped = exclude or ()
            dumped = {name: value for name, value in dumped.items() if (include is None or name in include) and name not in dropped}
        return msgspec.to_builtins(dumped) if mode == "json" else dumped  # type: ignore[no-any-return]

    def model_dump_json(
        self,
        *,
        indent: int | None = None,
        include: Collection[str] | None = None,
        exclude: Collection[str] | None = None,
        by_alias: bool | None = None,
        exclude_unset: bool = False,
        exclude_defaults: bool = False,
        exclude_none: bool | None = None,
        warnings: bool = True,
    ) -> str:
        """Return ``model_dump`` as JSON, by default without the null fields, which make up most of a chunk.

        Args:
            indent: spaces per level, or None for a single line.
            include, exclude, by_alias, exclude_unset, exclude_defaults, warnings: as in ``model_dump``.
            exclude_none: leave out fields that are null. None does so unless ``exclude_unset`` is set; False returns the same JSON as
                OpenAI's SDK.
        """
        dumped = self.model_dump(
            include=include,
            exclude=exclude,
            by_alias=by_alias,
            exclude_unset=exclude_unset,
            exclude_defaults=exclude_defaults,
            exclude_none=not exclude_unset if exclude_none is None else exclude_none,
            warnings=warnings,
        )
        encoded = msgspec.json.encode(dumped)
        return (encoded if indent is None else msgspec.json.format(encoded, indent=indent)).decode()

    def to_dict(
        self,
        *,
        mode: Literal["json", "python"] = "python",
        use_api_names: bool = True,
        exclude_unset: bool = True,
        exclude_defaults: bool = False,
        exclude_none: bool = False,
        warnings: bool = True,
    ) -> dict[str, Any]:
        """Return ``model_dump`` without fields that the server didn't send. ``use_api_names`` has no effect; all names are the API's."""
        return self.model_dump(
            mode=mode,
            by_alias=use_api_names,
            exclude_unset=exclude_unset,
            exclude_defaults=exclude_defaults,
            exclude_none=exclude_none,
            warnings=warnings,
        )

    def to_json(
        self,
        *,
        indent: int | None = 2,
        use_api_names: bool = True,
        exclude_unset: bool = True,
        exclude_defaults: bool = False,
        exclude_none: bool = False,
        warnings: bool = True,
    ) -> str:
        """Return ``to_dict`` as JSON, indented by ``indent`` spaces per level, or on a single line if ``indent`` is None."""
        return self.model_dump_json(
            indent=indent,
            by_alias=use_api_names,
            exclude_unset=exclude_unset,
            exclude_defaults=exclude_defaults,
            exclude_none=exclude_none,
            warnings=warnings,
        )

    def _rename(self, dumped: dict[str, Any]) -> None:
        """Adjust the names in a dump, for a type whose servers use several names for a field."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Describe the type to pydantic, so that a FastAPI route may return it, as JSON without null fields."""
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            lambda value: value if isinstance(value, cls) else msgspec.convert(value, cls),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda value: value.model_dump(mode="json", exclude_none=True)),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        """Return the JSON schema for FastAPI's documentation."""
        return {"type": "object", "title": cls.__name__}


def _dump(value: Any, keep_nulls: Literal["all", "sent", "none"]) -> Any:
    if isinstance(value, list):
        return [_dump(item, keep_nulls) for item in value]
    if isinstance(value, dict):
        return {name: _dump(item, keep_nulls) for name, item in value.items() if item is not None or keep_nulls != "none"}
    if not isinstance(value, ResponseModel):
        return value
    found = {name: _dump(item, keep_nulls) for name, item in _fields(value).items()}
    if keep_nulls == "all":
        return found
    kept = value.sent_nulls | further_fields(value).keys() if keep_nulls == "sent" else ()
    return {name: item for name, item in found.items() if item is not None or name in kept}


def _fields(value: ResponseModel) -> dict[str, Any]:
    """Return the fields of a response with their values: OpenAI's, other declared fields that are set, and undeclared ones."""
    found: dict[str, Any] = dict.fromkeys(value.openai_fields)
    own = _own_fields(type(value))
    for name in value.__struct_fields__:
        item = getattr(value, name)
        if name != _FURTHER and name not in value.undumped and (name not in own or item != own[name]):
            found[name] = item
    found.update(further_fields(value))
    value._rename(found)
    return found


@cache
def _own_fields(kind: type[ResponseModel]) -> dict[str, Any]:
    """Return the fields that OpenAI doesn't have, with their defaults."""
    names, defaults = kind.__struct_fields__, kind.__struct_defaults__
    found = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    return {name: default for name, default in found.items() if name not in kind.openai_fields}


_Model = TypeVar("_Model", bound=ResponseModel)


def with_further(model: _Model, further: dict[str, Any]) -> _Model:
    """Return a copy that has a server's undeclared fields as attributes and in ``model_extra``; without any, the object itself.

    Args:
        model: the object. Undeclared fields that it already has are kept.
        further: the fields by name. A name that begins with two underscores doesn't become an attribute, because Python uses such names.
    """
    if not further:
        return model
    if before := further_fields(model):
        return msgspec.structs.replace(model, further=before | further)
    extended, read_values = _extended(type(model))
    return cast("_Model", extended(*read_values(model), further))


def without_further(model: _Model | None) -> _Model | None:
    """Return a copy of the object with its plain type, without undeclared fields; an object that has none is returned unchanged."""
    return cast("_Model", model.plain()) if isinstance(model, _HasFurther) else model


def further_fields(model: ResponseModel) -> dict[str, Any]:
    """Return the fields that ``with_further`` added to an object; {} if there are none."""
    return getattr(model, _FURTHER, None) or {}


class _HasFurther:
    """Marks subclasses that accept undeclared fields, and makes those fields available as attributes."""

    __slots__ = ()
    further: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        if name == _FURTHER or name.startswith("__") or name not in self.further:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self.further[name]

    def plain(self) -> Any:
        kind = cast("type[ResponseModel]", type(self).__mro__[2])
        return kind(*(getattr(self, name) for name in kind.__struct_fields__))

    def __reduce__(self) -> Any:
        return with_further, (self.plain(), self.further)


@cache
def _extended(kind: type[ResponseModel]) -> tuple[type[ResponseModel], Callable[[ResponseModel], tuple[Any, ...]]]:
    """Return the subclass of a response type that has undeclared fields, and a function that reads the declared fields of the type."""
    added: Any = (_FURTHER, dict[str, Any], field(default_factory=dict))
    made = msgspec.defstruct(kind.__name__, [added], bases=(_HasFurther, kind), module=kind.__module__, gc=True)
    return cast("type[ResponseModel]", made), attrgetter(*kind.__struct_fields__)
