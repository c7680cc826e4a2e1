"""Find the plain events at the start of an event stream's bytes.

This twin is the specification. Plain is what chat servers send: one ``data:`` line, then a blank line, both ended by LF or both by CRLF.
Whatever else comes (comments, other fields, several lines, lone CR, an event that is not complete) stops the scan and is the caller's.

With 250-byte events (bench/wire.py) the event layer on the compiled scanner is 14 times as fast as on this twin for events in bulk, 5
times for one event a read; against the best pure Python found (one bytes.split) 4 times.
"""

from __future__ import annotations

import re

__all__ = ["scan_events"]

_match_event = re.compile(rb"data: ?([^\n]*)\n(\r?)\n").match  # without CR in the class: five times as fast


def scan_events(data: bytes, limit: int) -> tuple[list[bytes], int]:
    """Split off plain events.

    Args:
        data: bytes of an event stream; the first is the first of an event.
        limit: the longest event to take, in bytes, its line ends not counted.

    Returns:
        The events' data in order, and how many bytes of ``data`` they took.
    """
    payloads = []
    used = 0
    while event := _match_event(data, used):
        payload, second_cr = event.groups()
        if second_cr and payload.endswith(b"\r"):
            payload = payload[:-1]
        elif second_cr:
            break
        if b"\r" in payload or event.start(1) - used + len(payload) > limit:
            break
        payloads.append(payload)
        used = event.end()
    return payloads, used
