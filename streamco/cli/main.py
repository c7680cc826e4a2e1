"""The ``streamco`` command, which finds the sub-command and imports only that one."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, NoReturn, TextIO, cast

from streamco.cli.ui.control_characters import print_plain
from streamco.errors import ConfigError, StreamcoError

__all__ = ["COMMANDS", "build_parser", "main"]

COMMANDS = {
    "calibrate": "measure the model on this machine, alone or with a verifier, for a profile",
    "callers": "keys of the proxy's callers, with budgets, rates and what was spent",
    "chat": "talk to the model on this device and to a server at once",
    "completion": "print a script that completes this command in a shell",
    "demo": "see it work: device and server on this machine, no key, no download",
    "doctor": "which parts run here, how fast the device's model is, and what would be faster",
    "models": "download, list and delete models",
    "proxy": "an OpenAI-compatible server in front of both sides",
    "serve": "an OpenAI-compatible server over one GGUF model",
    "simulate": "experiments in virtual time: many devices, servers and links, from one file",
    "split": "cut a GGUF model into parts, for a device and a server",
}
INTERRUPTED = 130  # 128 + SIGINT, as shells count it


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line, and return the exit code: 0, 1 (an endpoint failed), 2 (usage) or 130 (Ctrl-C)."""
    with _optional_stderr():
        return _main(list(sys.argv[1:] if argv is None else argv))


def _main(words: Sequence[str]) -> int:
    verbose = 0
    try:
        args = _parse(words)
        verbose = args.verbose
        return _run(args)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `streamco ... | head`: the reader has stopped, which isn't an error
        sys.stderr.close()
        return 0
    except StreamcoError as error:
        if verbose > 1:
            raise
        print_plain(f"streamco: {error}", sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1


class _Version(argparse.Action):
    """Prints the version, which is looked up only when it is needed."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from streamco.engines.native_notice import native_state

        print_plain(f"streamco {_version()} ({native_state()})")
        parser.exit()


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, and in another where the options are listed. Misspelt words get a suggestion."""

    def error(self, message: str) -> NoReturn:
        """Print the message, and exit with status 2."""
        print_plain(f"{self.prog}: {message}\n{self.prog} --help lists what there is", sys.stderr)
        self.exit(2)

    def _check_value(self, action: argparse.Action, value: Any) -> None:  # argparse has no public hook for this
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        hint = _suggestion(str(value), choices)
        if isinstance(action.choices, Mapping):
            self.error(f"unknown command {value}{hint}")
        raise argparse.ArgumentError(action, f"expected {', '.join(choices[:-1])} or {choices[-1]}, got {str(value)!r}{hint}")


def _suggestion(typed: str, known: Collection[str]) -> str:
    """Return ": did you mean WORD?" with the closest known word, or "" if none is close."""
    near = difflib.get_close_matches(typed, known, n=1)
    return f": did you mean {near[0]}?" if near else ""


def _unknown_text(unknown: Sequence[str], parser: argparse.ArgumentParser) -> str:
    """Explain what is wrong with words that no parser accepted."""
    options = [word.partition("=")[0] for word in unknown if word.startswith("-")]
    if not options:
        return f"expected nothing more, got {' '.join(map(repr, unknown))} (text of several words needs quotation marks)"
    known = _options_of(parser)
    named = [f"unknown option {option}{_suggestion(option, known)}" for option in options]
    return "; ".join(named)


def _options_of(parser: argparse.ArgumentParser) -> list[str]:
    """Return the options that a parser's help lists, including the options of its actions."""
    found: list[str] = []
    for action in parser._actions:
        found += action.option_strings if action.help != argparse.SUPPRESS else []
        if isinstance(action.choices, Mapping):  # actions such as `models get`
            found += [option for each in action.choices.values() for option in _options_of(each)]
    return found


def _command_in(words: Sequence[str]) -> str:
    """Return the sub-command's name, or "" if there is none. Only its module has to be imported to know the options."""
    return next((word for word in words if word in COMMANDS), "")


def _parse(words: Sequence[str]) -> argparse.Namespace:
    chosen = _command_in(words)
    parser, commands = build_parser([chosen] if chosen else [])
    command = commands.get(chosen)
    args, unknown = parser.parse_known_args(words)
    if unknown:
        (command or parser).error(_unknown_text(unknown, command or parser))
    return args


def build_parser(with_options: Collection[str]) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Return the parser of the whole command, and the sub-commands' parsers by name.

    Only the parsers of the sub-commands in ``with_options`` have options, because the modules of these sub-commands have to be imported.
    """
    parser = _Parser(
        prog="streamco",
        description="One streamed answer, made by a small model on this machine and a remote endpoint together.",
        epilog="streamco COMMAND --help lists the options of a command.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version, and whether the compiled extensions run")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    parsers: dict[str, argparse.ArgumentParser] = {}
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, formatter_class=argparse.RawDescriptionHelpFormatter)
        command.add_argument("-v", "--verbose", action="count", default=0, help="log what happens; twice: everything, and tracebacks")
        if name in with_options:
            import_module(f"streamco.cli.{name}").add_arguments(command)
        parsers[name] = command
    return parser, parsers


def _version() -> str:
    try:
        return metadata.version("streamco")
    except metadata.PackageNotFoundError:  # run from a source tree
        return "(not installed)"


def _run(args: argparse.Namespace) -> int:
    from streamco.cli.runtime import set_up_log

    set_up_log(args.verbose)
    code = import_module(f"streamco.cli.{args.command}").run(args)
    if not isinstance(code, int):
        raise AssertionError(f"a command returns its exit code, got {code!r}")
    return code


class _Optional:
    """A text file that ignores failed writes: a log may be on a full disk, or its reader may be gone.

    Args:
        file: the file, which provides all other attributes.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        """Write text if possible, and return its length."""
        with suppress(OSError):
            self._file.write(text)
        return len(text)

    def flush(self) -> None:
        """Write buffered text if possible."""
        with suppress(OSError):
            self._file.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextmanager
def _optional_stderr() -> Iterator[None]:
    """Keep running inside the block if stderr is closed or can't be written, because no result depends on what is printed there."""
    former: TextIO | None = sys.stderr
    with Path(os.devnull).open("w") as nowhere:
        sys.stderr = cast(TextIO, _Optional(nowhere if former is None else former))
        try:
            yield
        finally:
            sys.stderr = cast(TextIO, former)
