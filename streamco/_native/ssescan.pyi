from collections.abc import Callable
from typing import Any

def scan_events(data: bytes, limit: int) -> tuple[list[bytes], int]: ...
def copy_events(
    payloads: list[bytes], start: int, head: bytes, tail: bytes, *, chunk: Any, field: str, read_text: Callable[[bytes], str]
) -> tuple[list[Any], list[str], int]: ...
