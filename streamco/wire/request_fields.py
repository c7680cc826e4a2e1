"""Reads the request bodies of other APIs that are translated to chat. Errors name the field by its path, such as ``input[2].content``."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

__all__ = ["BODY", "FieldError", "Fields", "decode_fields", "name_of", "objects_of", "unoffered"]

T = TypeVar("T")

BODY = "body"  # the field of an error about the body as a whole


class FieldError(ValueError):
    """A field of a request that can't be served.

    Args:
        field: path of the field in the body, or ``BODY`` for the body as a whole.
        message: what was expected and what came instead.
        code: OpenAI's machine-readable error code, or None if there is none.
    """

    def __init__(self, field: str, message: str, *, code: str | None = None) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message
        self.code = code


def unoffered(field: str, got: str = "some") -> FieldError:
    """Return the error for a field that asks for something this server doesn't offer."""
    return FieldError(field, f"expected none, got {got}: this server doesn't offer it", code="unsupported_parameter")


def name_of(value: Any) -> str:
    """Return the name of a value's JSON type, for error messages. They don't quote the value, because it may be long or private."""
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
    return "an object"


def objects_of(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a decoded list, or [] if it isn't a list. Other elements are left out, and refused later when they are read."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


class Fields:
    """One JSON object of a body, read field by field. Fields that are null count as not given.

    Args:
        value: the decoded object.
        path: path of the object in the body, or "" for the body itself.

    Raises:
        FieldError: the value isn't an object.
    """

    __slots__ = ("_unread", "path")

    def __init__(self, value: Any, path: str = "") -> None:
        if not isinstance(value, dict):
            raise FieldError(path or BODY, f"expected an object, got {name_of(value)}")
        self.path = path
        self._unread = {name: each for name, each in value.items() if each is not None}

    def where(self, name: str) -> str:
        """Return the path of one field."""
        return f"{self.path}.{name}" if self.path else name

    def take(self, name: str, default: Any = None) -> Any:
        """Return a field's value, whatever its type, and mark the field as read."""
        return self._unread.pop(name, default)

    def text(self, name: str) -> str | None:
        """Return a string field, or None if it isn't given.

        Raises:
            FieldError: the value isn't a string.
        """
        return self._typed(name, str, "a string")

    def needed_text(self, name: str) -> str:
        """Return a string field that must be given.

        Raises:
            FieldError: the field isn't given, or isn't a string.
        """
        return self._needed(name, str, "a string")

    def flag(self, name: str) -> bool | None:
        """Return a boolean field, or None if it isn't given.

        Raises:
            FieldError: the value isn't a boolean.
        """
        return self._typed(name, bool, "true or false")

    def count(self, name: str) -> int | None:
        """Return an integer field of at least 1, or None if it isn't given.

        Raises:
            FieldError: the value isn't an integer, or is less than 1.
        """
        value = self.take(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise FieldError(self.where(name), f"expected an integer >= 1, got {name_of(value)}")
        if value < 1:
            raise FieldError(self.where(name), f"expected an integer >= 1, got {value}")
        return value

    def items(self, name: str) -> list[Any] | None:
        """Return a list field, or None if it isn't given.

        Raises:
            FieldError: the value isn't a list.
        """
        return self._typed(name, list, "a list")

    def objects(self, name: str) -> list[Fields]:
        """Return the objects in a list field, or [] if it isn't given.

        Raises:
            FieldError: the value isn't a list of objects.
        """
        where = self.where(name)
        return [Fields(each, f"{where}[{index}]") for index, each in enumerate(self.items(name) or [])]

    def inner(self, name: str) -> Fields | None:
        """Return the fields of an object field, or None if it isn't given.

        Raises:
            FieldError: the value isn't an object.
        """
        value = self.take(name)
        return None if value is None else Fields(value, self.where(name))

    def json_object(self, name: str) -> dict[str, Any] | None:
        """Return an object field as it was decoded, including nulls, or None if it isn't given.

        Raises:
            FieldError: the value isn't an object.
        """
        return self._typed(name, dict, "an object")

    def needed_object(self, name: str) -> dict[str, Any]:
        """Return an object field that must be given, as it was decoded.

        Raises:
            FieldError: the field isn't given, or isn't an object.
        """
        return self._needed(name, dict, "an object")

    def _typed(self, name: str, kind: type[T], what: str) -> T | None:
        """Return a field of this type, or None if it isn't given. ``what`` names the JSON type in errors."""
        value = self.take(name)
        if value is not None and not isinstance(value, kind):
            raise FieldError(self.where(name), f"expected {what}, got {name_of(value)}")
        return value

    def _needed(self, name: str, kind: type[T], what: str) -> T:
        value = self._typed(name, kind, what)
        if value is None:
            raise FieldError(self.where(name), f"expected {what}, got none")
        return value

    def skip(self, *names: str) -> None:
        """Mark fields as read if they have no effect here."""
        for name in names:
            self.take(name)

    def rest(self) -> dict[str, Any]:
        """Return the fields that haven't been read yet, by name."""
        return dict(self._unread)

    def refuse_rest(self) -> None:
        """Refuse whatever has not been read, unless it is false or empty.

        Raises:
            FieldError: an unread field has a value.
        """
        for name, value in self._unread.items():
            if value not in (False, "", [], {}):
                raise unoffered(self.where(name))


def decode_fields(body: bytes) -> Fields:
    """Return the fields of a JSON body.

    Raises:
        FieldError: the body isn't JSON, or isn't an object.
    """
    try:
        return Fields(msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FieldError(BODY, f"expected JSON, got {error}") from error
