"""``streamco completion``: prints a script for bash, zsh, fish or tcsh that completes commands, options, choices and file names."""

from __future__ import annotations

import argparse

from streamco.cli.main import COMMANDS, build_parser
from streamco.cli.ui.control_characters import print_plain
from streamco.errors import ConfigError

__all__ = ["add_arguments", "completion_script", "run"]

SHELLS = ("bash", "zsh", "fish", "tcsh")
DESCRIPTION = """\
Prints a script that completes streamco's commands, options, choices and file names in your shell:

  bash   streamco completion bash > ~/.local/share/bash-completion/completions/streamco
  zsh    streamco completion zsh > DIR/_streamco, where DIR is in $fpath
  fish   streamco completion fish > ~/.config/fish/completions/streamco.fish
  tcsh   streamco completion tcsh > ~/.streamco.tcsh; source it in ~/.tcshrc
"""
PATHS = {"FILE", "FOLDER", "PATH"}  # metavars of options and arguments that take a file name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``streamco completion``."""
    parser.description = DESCRIPTION
    parser.add_argument("shell", choices=SHELLS, help="the shell that will read the script")


def run(args: argparse.Namespace) -> int:
    """Print the script; the exit code is 0.

    Raises:
        ConfigError: shtab, which writes such scripts, isn't installed.
    """
    print_plain(completion_script(args.shell))
    return 0


def completion_script(shell: str) -> str:
    """Return the script for one of ``SHELLS``."""
    try:
        import shtab
    except ImportError as exc:
        raise ConfigError("completion: needs the package shtab: pip install 'streamco[cli]'") from exc
    parser, commands = build_parser(list(COMMANDS))
    for command in commands.values():
        for action in command._actions:
            if action.metavar in PATHS:
                setattr(action, "complete", shtab.FILE)  # noqa: B010 - shtab's interface is an attribute that argparse doesn't know
    try:
        script: str = shtab.complete(parser, shell=shell)
    except NotImplementedError as exc:
        raise ConfigError(f"completion: expected a version of the package shtab that knows {shell}, got {shtab.__version__}") from exc
    return script
