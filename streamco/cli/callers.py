"""``streamco callers``: manages the keys of a proxy's callers and their limits, and shows what they have spent."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamco.cli.options import number, option, whole_number
from streamco.cli.ui.control_characters import print_plain
from streamco.errors import ConfigError

if TYPE_CHECKING:
    from streamco.endpoints.base import Kind
    from streamco.proxy.callers.base import Caller, DayFigures
    from streamco.proxy.callers.store import CallerStore

__all__ = ["add_arguments", "run"]

DESCRIPTION = """\
Each caller of `streamco proxy --callers FILE` has a key of its own, a budget in US dollars a day (UTC), a limit of requests a minute,
and the sides that its answers may come from. Changes count from the next request on. A key is shown once, when it is made; the file has
its hash alone.
"""
FILE = Path("callers.sqlite")
NONE = "none"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of ``streamco callers``."""
    parser.description = DESCRIPTION
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    add = actions.add_parser("add", help="add a caller and print its key, once; the file is made if there is none")
    _add_name(add)
    _add_limits(add, is_new=True)
    change = actions.add_parser("set", help="change the limits of a caller; what isn't named stays")
    _add_name(change)
    _add_limits(change, is_new=False)
    rotate = actions.add_parser("rotate", help="replace a caller's key and print the new one, once; the old one is void at once")
    _add_name(rotate)
    remove = actions.add_parser("rm", help="remove a caller with its figures; its key is void at once")
    _add_name(remove)
    listing = actions.add_parser("list", help="all callers, with what they have spent today")
    usage = actions.add_parser("usage", help="a caller's requests, tokens and costs, day by day")
    _add_name(usage)
    usage.add_argument("--days", type=option(_days), default=7, metavar="N", help="days, today's included: 1 to 400 (7)")
    backup = actions.add_parser("backup", help="write a copy of the file, also while a proxy uses it")
    backup.add_argument("copy", type=Path, metavar="COPY", help="the copy, a new file")
    for each in (add, change, rotate, remove, listing, usage, backup):
        each.add_argument("--file", type=Path, default=FILE, metavar="FILE", help=f"the callers' file ({FILE})")


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name in figures and logs: letters, digits, dots, dashes, underscores")


def _add_limits(parser: argparse.ArgumentParser, *, is_new: bool) -> None:
    unset = argparse.SUPPRESS
    parser.add_argument(
        "--budget",
        type=option(_budget),
        required=is_new,
        default=unset,
        metavar="USD",
        help="US dollars a day (UTC), such as 0.50; none: no limit",
    )
    parser.add_argument(
        "--rate", type=option(_rate), default=unset, metavar="N", help=f"requests a minute; none: no limit{' (none)' if is_new else ''}"
    )
    parser.add_argument(
        "--sides",
        type=option(_sides),
        default=unset,
        metavar="SIDES",
        help=f"where answers may come from: device, server, or both with a comma{' (device,server)' if is_new else ''}",
    )
    parser.add_argument(
        "--operator", action=argparse.BooleanOptionalAction, default=unset, help="may read /metrics and /streamco/totals, which are of all"
    )


def run(args: argparse.Namespace) -> int:
    """Run the action; the exit code is 0.

    Raises:
        ConfigError: there is no such caller (or already one, for ``add``), or the file can't be used.
    """
    from streamco.proxy.callers.store import CallerStore

    store = CallerStore(args.file.expanduser(), patience=5.0)
    actions: Mapping[str, Callable[[CallerStore, argparse.Namespace], None]] = {
        "add": _add,
        "set": _set,
        "rotate": _rotate,
        "rm": _remove,
        "list": _list,
        "usage": _usage,
        "backup": _back_up,
    }
    try:
        actions[args.action](store, args)
    finally:
        store.close()
    return 0


def _add(store: CallerStore, args: argparse.Namespace) -> None:
    from streamco.proxy.callers.base import Caller
    from streamco.proxy.callers.keys import make_key

    caller = Caller(name=args.name, **_limits(args))
    key, key_hash = make_key()
    store.create()
    store.add(caller, key_hash)
    _print_key(key, f"{_described(caller)}: its key is shown this once")


def _set(store: CallerStore, args: argparse.Namespace) -> None:
    from msgspec.structs import replace

    changes = _limits(args)
    if not changes:
        raise ConfigError("callers set: expected --budget, --rate, --sides or --operator, got none")
    caller = replace(store.named(args.name), **changes)
    store.change(caller)
    print_plain(_described(caller))


def _rotate(store: CallerStore, args: argparse.Namespace) -> None:
    from streamco.proxy.callers.keys import make_key

    key, key_hash = make_key()
    store.rotate(args.name, key_hash)
    _print_key(key, f"{args.name}: the new key is shown this once, and the old one is void")


def _remove(store: CallerStore, args: argparse.Namespace) -> None:
    store.remove(args.name)
    print_plain(f"removed {args.name}")


def _list(store: CallerStore, _args: argparse.Namespace) -> None:
    rows = [("name", "budget $/day", "spent today", "reserved", "requests/min", "sides")]
    for caller in store.listed():
        _, today = store.figures(caller.name, time.time())
        name = f"{caller.name} (operator)" if caller.is_operator else caller.name
        limits = (_limit(caller.budget), _dollars(today.spent), _dollars(today.reserved), NONE if caller.rate is None else str(caller.rate))
        rows.append((name, *limits, ",".join(caller.sides)))
    if len(rows) == 1:
        print_plain("no callers; streamco callers add NAME --budget USD makes one", sys.stderr)
        return
    _print_table(rows)


def _usage(store: CallerStore, args: argparse.Namespace) -> None:
    days = store.history(args.name, time.time(), args.days)
    if not days:
        print_plain(f"no requests of {args.name} in {args.days} days", sys.stderr)
        return
    heads = ("day", "requests", "device only", "refused", "prompt tokens", "completion tokens", "spent $", "reserved $")
    _print_table([heads, *map(_row_of, days)])


def _back_up(store: CallerStore, args: argparse.Namespace) -> None:
    copy = args.copy.expanduser()
    store.copy(copy)
    print_plain(f"wrote {copy}")


def _row_of(day: DayFigures) -> tuple[str, ...]:
    counts = (day.requests, day.spared, day.refused)
    tokens = (_tokens(day.prompt_tokens, day.estimated_prompt_tokens), _tokens(day.completion_tokens, day.estimated_completion_tokens))
    return (day.day, *map(str, counts), *tokens, _dollars(day.spent), _dollars(day.reserved))


def _tokens(count: int, estimated: int) -> str:
    """Return a number of tokens as text, with ``~`` if part of it is an estimate."""
    return f"{'~' if estimated else ''}{count}"


def _print_key(key: str, text: str) -> None:
    """Print a key on stdout by itself, so that a shell can capture it, and an explanation on stderr."""
    print_plain(text, sys.stderr)
    print_plain(key)


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print_plain("  ".join([row[0].ljust(widths[0]), *cells]).rstrip())


def _described(caller: Caller) -> str:
    rate = "any number of" if caller.rate is None else str(caller.rate)
    budget = "no budget" if caller.budget is None else f"{_dollars(caller.budget)} $ a day"
    may = ", may read all figures" if caller.is_operator else ""
    return f"{caller.name}: {budget}, {rate} requests a minute, {' and '.join(caller.sides)}{may}"


def _limit(nanos: int | None) -> str:
    return NONE if nanos is None else _dollars(nanos)


def _dollars(nanos: int) -> str:
    """Return nanodollars as US dollars with two decimals, or more if needed."""
    whole, _, rest = f"{nanos // 10**9}.{nanos % 10**9:09d}".partition(".")
    return f"{whole}.{rest.rstrip('0').ljust(2, '0')}"


def _limits(args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a caller that the options set."""
    names = {"budget": "budget", "rate": "rate", "sides": "sides", "operator": "is_operator"}
    return {field: getattr(args, name) for name, field in names.items() if name in args}


def _budget(text: str) -> int | None:
    from streamco.proxy.callers.base import to_nanos

    return None if text == NONE else to_nanos(number(text))


def _rate(text: str) -> int | None:
    return None if text == NONE else whole_number(text)


def _days(text: str) -> int:
    from streamco.proxy.callers.store import KEPT_DAYS

    days = whole_number(text)
    if days > KEPT_DAYS:
        raise ConfigError(f"expected at most {KEPT_DAYS} days, because no more are kept, got {days}")
    return days


def _sides(text: str) -> tuple[Kind, ...]:
    from streamco.proxy.callers.base import SIDES

    words = text.split(",")
    if not words or set(words) - set(SIDES):
        raise ConfigError(f"expected device, server or device,server, got {text!r}")
    return tuple(side for side in SIDES if side in words)
