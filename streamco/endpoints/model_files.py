"""Finds GGUF files by name: ``hf:org/repo:QUANT`` names a file in the cache that Hugging Face's programs share.

Only ``fetch`` and ``look_up`` use the network, and only ``streamco models get`` calls them. If a model is missing, the error names that
command. Nothing else downloads a model, because a model takes hundreds of megabytes.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msgspec import Struct

from streamco.errors import ConfigError, EndpointError, StreamcoError

__all__ = [
    "PACKAGED",
    "CachedModel",
    "HubFile",
    "HubName",
    "cached_models",
    "choose_file",
    "fetch",
    "file_of",
    "find_cached",
    "has_hub",
    "is_hub_name",
    "look_up",
    "parse_hub_name",
    "path_of",
    "remove",
    "sha256_of",
]

PACKAGED = "packaged"  # the name of the model that ``streamco models get packaged`` fetches

_log = logging.getLogger("streamco")

PREFIX = "hf:"
USUAL = "Q4_K_M"  # the default format, the same as llama.cpp's and Ollama's
_NAME = re.compile(r"([\w][\w.-]*/[\w][\w.-]*)(?::([\w.-]+))?")
_FORMAT = re.compile(r"[-._]((?:i?q\d|tq\d|mxfp\d|bf16|f16|f32)[\w]*)$", re.IGNORECASE)
_PART = re.compile(r"-\d{5}-of-\d{5}$")
_SHOWN = 12  # maximum number of names shown in an error


class HubName(Struct, frozen=True):
    """A model's name: ``hf:repo:quant``.

    Args:
        repo: owner and name of the repository.
        quant: the format of the weights, as in the file's name; None for the usual format, or for the only file.
    """

    repo: str
    quant: str | None = None

    def __str__(self) -> str:
        return f"{PREFIX}{self.repo}" + (f":{self.quant}" if self.quant else "")


class HubFile(Struct, frozen=True):
    """A file in a repository.

    Args:
        name: the model's name.
        file: path of the file in the repository.
        size: size in bytes.
        sha256: its digest according to the hub, in hex, or None if the hub doesn't say.
    """

    name: HubName
    file: str
    size: int
    sha256: str | None


class CachedModel(Struct, frozen=True):
    """A GGUF file in the cache.

    Args:
        repo: owner and name of its repository.
        file: the file's name.
        path: path of its newest revision.
        size: bytes on disk.
        links: the file's paths in all revisions that were fetched.
        data: paths of the cache's blobs that hold the file's bytes, except blobs that another file shares.
    """

    repo: str
    file: str
    path: Path
    size: int
    links: tuple[Path, ...]
    data: tuple[Path, ...]

    @property
    def name(self) -> str:
        """The name of this file: ``hf:repo:FORMAT``, or its path if its format isn't known."""
        quant = _format_of(self.file)
        return str(self.path) if quant is None else str(HubName(self.repo, quant))


def is_hub_name(text: str) -> bool:
    """Return True if a model's name is a name on Hugging Face's hub rather than a path."""
    return text.startswith(PREFIX)


def parse_hub_name(text: str) -> HubName:
    """Parse ``hf:org/repo`` or ``hf:org/repo:QUANT``.

    Raises:
        ConfigError: the text has another form.
    """
    found = _NAME.fullmatch(text.removeprefix(PREFIX)) if is_hub_name(text) else None
    if found is None:
        raise ConfigError(f"model: expected a name like hf:org/repo:{USUAL}, got {text!r}")
    return HubName(found[1], found[2])


def choose_file(files: Iterable[str], name: HubName) -> str:
    """Return the file in a repository that a name stands for.

    Raises:
        ConfigError: there is no such file, there are several, or the model is split into several files.
    """
    models = sorted(file for file in files if file.lower().endswith(".gguf") and "mmproj" not in file.lower())
    matching = [file for file in models if _has_format(file, name.quant)] if name.quant else models
    if len(matching) > 1 and name.quant is None:
        matching = [file for file in models if _has_format(file, USUAL)] or models
    if not matching:
        raise ConfigError(f"{name}: expected a GGUF file of that format, got {_list(models)}")
    if any(_PART.search(Path(file).stem) for file in matching):
        raise ConfigError(f"{name}: expected a model in one file, got {len(matching)} parts; join them with llama-gguf-split")
    if len(matching) > 1:
        raise ConfigError(f"{name}: expected one GGUF file, got {_list(matching)}; name a format, as in {PREFIX}{name.repo}:{USUAL}")
    return matching[0]


def _stem(file: str) -> str:
    """Return a file's name without its extension and part number."""
    return _PART.sub("", Path(file).stem)


def _format_of(file: str) -> str | None:
    """Return the format of the weights that a file's name ends in, or None if it isn't a known one."""
    found = _FORMAT.search(_stem(file))
    return None if found is None else found[1]


def _has_format(file: str, quant: str) -> bool:
    return re.search(rf"(?:^|[-._]){re.escape(quant)}$", _stem(file), re.IGNORECASE) is not None


def _list(files: Sequence[str]) -> str:
    if not files:
        return "none"
    more = len(files) - _SHOWN
    return ", ".join(files[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def cached_models(cache: Path | None = None) -> list[CachedModel]:
    """Return the GGUF files in the cache, sorted by repository and name.

    Args:
        cache: folder of the cache, by default Hugging Face's own (``HF_HUB_CACHE``, ``HF_HOME``).

    Raises:
        ConfigError: huggingface_hub isn't installed.
    """
    hub = _hub()
    try:
        info = hub.scan_cache_dir(cache)
    except hub.CacheNotFound:
        return []
    for warning in info.warnings:
        _log.warning("a part of the cache can't be read: %s", warning)
    found = [_cached(repo, name) for repo in info.repos if repo.repo_type == "model" for name in _models_in(repo)]
    return sorted(found, key=lambda model: (model.repo, model.file))


def _models_in(repo: Any) -> set[str]:
    names = {file.file_name for revision in repo.revisions for file in revision.files}
    return {name for name in names if name.lower().endswith(".gguf")}


def _cached(repo: Any, name: str) -> CachedModel:
    files = [file for revision in sorted(repo.revisions, key=lambda each: each.last_modified) for file in revision.files]
    same = [file for file in files if file.file_name == name]
    others = {file.blob_path for file in files if file.file_name != name}
    folder = repo.repo_path / "blobs"
    data = {file.blob_path for file in same if file.blob_path not in others and file.blob_path.parent == folder}
    return CachedModel(
        repo=repo.repo_id,
        file=name,
        path=same[-1].file_path,
        size=same[-1].size_on_disk,
        links=tuple(sorted({file.file_path for file in same})),
        data=tuple(sorted(data)),
    )


def find_cached(name: HubName, cache: Path | None = None) -> CachedModel | None:
    """Return the file in the cache that a name stands for, or None if it isn't there.

    If the name has no format, only a file in the usual format or without a format in its name will do. Others may be there by chance.

    Raises:
        ConfigError: there are several such files, or huggingface_hub isn't installed.
    """
    there = [model for model in cached_models(cache) if model.repo == name.repo]
    if name.quant is None:
        meant = [model for model in there if _has_format(model.file, USUAL) or _format_of(model.file) is None]
    else:
        meant = [model for model in there if _has_format(model.file, name.quant)]
    if not meant:
        return None
    chosen = choose_file([model.file for model in meant], name)
    return next(model for model in meant if model.file == chosen)


def file_of(text: str, cache: Path | None = None) -> Path:
    """Return the cached path of the model that ``hf:org/repo:QUANT`` names; nothing is downloaded.

    Raises:
        ConfigError: the model isn't in the cache, or the name is malformed.
    """
    name = parse_hub_name(text)
    found = find_cached(name, cache)
    if found is None:
        there = _list([model.name for model in cached_models(cache) if model.repo == name.repo])
        got = "nothing" if there == "none" else f"only {there}"
        raise ConfigError(f"{name}: not in the cache, which has {got} from this repository; streamco models get {name} downloads it")
    return found.path


def path_of(model: str | Path) -> Path:
    """Return the path of a model's file, which may be missing.

    Args:
        model: a path; "packaged" for the model that ``streamco models get packaged`` fetches; or ``hf:org/repo:QUANT``, which is looked up
            in the cache.

    Raises:
        ConfigError: a hub name is malformed, or the model that it names isn't in the cache.
        EngineError: the packaged model isn't installed.
    """
    if model == PACKAGED:
        from streamco.engines.llamacpp.bundled_model import packaged_model

        return packaged_model()
    return file_of(model) if isinstance(model, str) and is_hub_name(model) else Path(model).expanduser()


def look_up(name: HubName, endpoint: str | None = None) -> HubFile:
    """Ask the hub for the file that a name stands for.

    Args:
        name: the model's name.
        endpoint: URL of the hub, by default ``HF_ENDPOINT`` or Hugging Face's.

    Raises:
        ConfigError: there is no such file, or huggingface_hub isn't installed.
        EndpointError: the hub doesn't respond, or refuses the request.
    """
    hub = _hub()
    with _translated(f"{name}: expected a list of its files from the hub"):
        info = hub.HfApi(endpoint=endpoint).model_info(name.repo, files_metadata=True)
    files = {each.rfilename: each for each in info.siblings or ()}
    chosen = files[choose_file(files, name)]
    digest = None if chosen.lfs is None else chosen.lfs.sha256
    return HubFile(name, chosen.rfilename, chosen.size or 0, digest)


def fetch(file: HubFile, *, cache: Path | None = None, endpoint: str | None = None) -> Path:
    """Download a file into the cache, or find it there, and return its path; an interrupted download is resumed.

    Raises:
        EndpointError: the download failed, or the file's digest differs from the hub's.
    """
    hub = _hub()
    with _translated(f"{file.name}: expected {file.file} from the hub"):
        path = Path(hub.hf_hub_download(file.name.repo, file.file, cache_dir=cache, endpoint=endpoint))
    if file.sha256 is not None and (got := sha256_of(path)) != file.sha256:
        remove([path, path.resolve()] if path.is_symlink() else [path])
        raise EndpointError(f"{file.name}: expected a file with SHA-256 {file.sha256}, got {got}; it was deleted")
    return path


def remove(files: Iterable[Path]) -> None:
    """Delete these files, if they exist.

    Raises:
        ConfigError: a file can't be deleted.
    """
    for file in files:
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(f"{file}: can't be deleted: {error.strerror or error}") from error


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def has_hub() -> bool:
    """Return True if huggingface_hub is installed."""
    return find_spec("huggingface_hub") is not None


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise ConfigError("hf: names need the package huggingface_hub: pip install 'streamco[models]'") from error
    return huggingface_hub


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """Translate the library's errors into this package's; ``what`` says what was expected."""
    try:
        yield
    except StreamcoError:
        raise
    except Exception as error:  # its own errors and its HTTP package's, which depends on the version
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise EndpointError(f"{what}, got {first}") from error
