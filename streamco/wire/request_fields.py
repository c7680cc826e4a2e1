"""Reading a request body of an API that is translated; an error names the field by its path, such as ``input[2].content``."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

__all__ = ["BODY", "FieldError", "Fields", "decode_fields", "name_of", "objects_of", "unoffered"]

T = TypeVar("T")

BODY = "body"  # the field of an error that is about the body as a whole


class FieldError(ValueError):
    """A field of a request that can't be served.

    Args:
        field: path of the field in the body; ``BODY``: the body as a whole.
        message: what was expected and what was got.
        code: OpenAI's machine-readable reason; None: none.
    """

    def __init__(self, field: str, message: str, *, code: str | None = None) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message
        self.code = code


def unoffered(field: str, got: str = "some") -> FieldError:
    """Return the error for a field that asks for something which can't be had here."""
    return FieldError(field, f"expected none, got {got}: this server doesn't offer it", code="unsupported_parameter")


def name_of(value: Any) -> str:
    """Return JSON's name of the value's type. The value is not quoted, because it may be long or private."""
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case list():
            return "a list"
    return "an object"


def objects_of(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a decoded list; []: it is no list. What is malformed is left out, and refused when it is read."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


class Fields:
    """One JSON object of a body, read field by field; null counts as not given.

    Args:
        value: the decoded object.
        path: where it is in the body; "": it is the body.

    Raises:
        FieldError: the value is no object.
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
        """Return a field's value of any type; it is not among ``rest`` any more."""
        return self._unread.pop(name, default)

    def text(self, name: str) -> str | None:
        """Return a text; None: not given.

        Raises:
            FieldError: it is no text.
        """
        return self._typed(name, str, "a text")

    def needed_text(self, name: str) -> str:
        """Return a text that must be given.

        Raises:
            FieldError: it isn't given, or is no text.
        """
        return self._needed(name, str, "a text")

    def flag(self, name: str) -> bool | None:
        """Return true or false; None: not given.

        Raises:
            FieldError: it is neither.
        """
        return self._typed(name, bool, "true or false")

    def count(self, name: str) -> int | None:
        """Return a whole number of at least 1; None: not given.

        Raises:
            FieldError: it is another value.
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
        """Return a list; None: not given.

        Raises:
            FieldError: it is no list.
        """
        return self._typed(name, list, "a list")

    def objects(self, name: str) -> list[Fields]:
        """Return the objects of a list; []: not given.

        Raises:
            FieldError: it is no list of objects.
        """
        where = self.where(name)
        return [Fields(each, f"{where}[{index}]") for index, each in enumerate(self.items(name) or [])]

    def inner(self, name: str) -> Fields | None:
        """Return an object's fields; None: not given.

        Raises:
            FieldError: it is no object.
        """
        value = self.take(name)
        return None if value is None else Fields(value, self.where(name))

    def json_object(self, name: str) -> dict[str, Any] | None:
        """Return an object as it was decoded, with its nulls; None: not given.

        Raises:
            FieldError: it is no object.
        """
        return self._typed(name, dict, "an object")

    def needed_object(self, name: str) -> dict[str, Any]:
        """Return an object that must be given, as it was decoded.

        Raises:
            FieldError: it isn't given, or is no object.
        """
        return self._needed(name, dict, "an object")

    def _typed(self, name: str, kind: type[T], what: str) -> T | None:
        """Return a value of this type; None: not given. ``what``: JSON's name of the type."""
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
        """Take fields that change nothing here."""
        for name in names:
            self.take(name)

    def rest(self) -> dict[str, Any]:
        """Return the fields that were not read, by name."""
        return dict(self._unread)

    def refuse_rest(self) -> None:
        """Refuse whatever was not read, unless it is false or empty.

        Raises:
            FieldError: there is such a field.
        """
        for name, value in self._unread.items():
            if value not in (False, "", [], {}):
                raise unoffered(self.where(name))


def decode_fields(body: bytes) -> Fields:
    """Return the fields of a JSON body.

    Raises:
        FieldError: it is no JSON, or no object.
    """
    try:
        return Fields(msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FieldError(BODY, f"expected JSON, got {error}") from error
