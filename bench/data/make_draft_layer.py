"""Train the draft layer of Qwen2.5-Coder-1.5B-Instruct on this machine, into the user's cache folder: ``make draft-layer``.

It is too large for the package. A split model finds it in the cache folder. The model writes answers to the prompts of GSM8K (MIT) and
Spec-Bench (Apache-2.0), every tenth prompt left out, and the layer learns from these. ``RECIPE`` is all that the result depends on. Texts
that are written stay in the cache folder, and training goes on from its last checkpoint, so an interrupted run loses little.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import msgspec
from msgspec import Struct

from bench.fetch_models import MODELS, fetched
from streamco.engines.llamacpp.cache_dir import cache_folder
from streamco.engines.llamacpp.draft_model import draft_layer_folder

__all__ = ["RECIPE", "Recipe", "Texts", "commands", "main"]


class Texts(Struct, frozen=True):
    """Answers of one kind.

    Args:
        kind: their name.
        prompts: file of the prompts.
        options: further options of ``bench.data.draft_text``.
    """

    kind: str
    prompts: str
    options: tuple[str, ...]


class Recipe(Struct, frozen=True):
    """How a draft layer is made.

    Args:
        model: name of the model in ``bench.fetch_models``.
        texts: what it learns from.
        training: options of ``bench.data.train_draft``.
    """

    model: str
    texts: tuple[Texts, ...]
    training: tuple[str, ...]


_ANSWER = ("--answer-tokens", "128")
RECIPE = Recipe(
    "1.5B",
    (
        Texts("gsm8k", "gsm8k_test.jsonl.gz", ("--prompt-tokens", "0", "110", "--batches", "5", *_ANSWER)),
        Texts("specbench", "spec_bench.jsonl.gz", ("--prompt-tokens", "0", "160", *_ANSWER)),
    ),
    ("--weights", "1", "1", "--inner", "1024", "--rate", "5e-4", "--visits", "469000", "--threads", "2"),
)


def work_folder(recipe: Recipe) -> Path:
    """Return the folder for texts and checkpoints, another one for each recipe."""
    return cache_folder("draft_texts", hashlib.sha256(msgspec.json.encode(recipe)).hexdigest()[:16])


def commands(recipe: Recipe, *, model: Path, prompts: Path, work: Path, target: Path) -> Iterator[tuple[str, ...]]:
    """Give the commands of a recipe, in their order: module and arguments.

    Args:
        recipe: the recipe.
        model: the model's file.
        prompts: folder with the prompts.
        work: folder for texts and checkpoints.
        target: the weights' file.
    """
    for texts in recipe.texts:
        about = ("--model", str(model), "--out", str(work), "--kind", texts.kind, "--prompts", str(prompts / texts.prompts))
        yield ("bench.data.draft_text", *about, *texts.options)
    kinds = [texts.kind for texts in recipe.texts]
    train = ("bench.data.train_draft", "--model", str(model), "--texts", str(work), "--out", str(work / f"{model.stem}.npz"))
    yield (*train, "--kinds", *kinds, "--absent", "--judge-every", "1e9", *recipe.training)
    yield (*train, "--ship", str(target))


def run(command: Sequence[str]) -> None:
    """Run a module.

    Raises:
        SystemExit: it failed.
    """
    print("python -m", *command, flush=True)
    if status := subprocess.run([sys.executable, "-m", *command], check=False).returncode:
        raise SystemExit(f"{command[0]}: expected it to end well, got status {status}")


def missing_prompts(folder: Path | None) -> list[str]:
    """Return the names of the recipe's files that a folder doesn't have; None: no folder."""
    names = dict.fromkeys(texts.prompts for texts in RECIPE.texts)
    return [name for name in names if folder is None or not (folder / name).is_file()]


def main() -> None:
    """Make the layer if it isn't there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = os.environ.get("STREAMCO_DATA")
    parser.add_argument(
        "--prompts",
        type=Path,
        default=Path(data) / "prompts" if data else None,
        help="folder with gsm8k_test.jsonl.gz and spec_bench.jsonl.gz (default: prompts in $STREAMCO_DATA)",
    )
    args = parser.parse_args()
    target = draft_layer_folder() / f"{Path(MODELS[RECIPE.model].file).stem}.npz"
    if not target.exists():
        model = fetched(RECIPE.model)
        if model is None:
            raise SystemExit(f"expected {MODELS[RECIPE.model].file} in the cache folder, where `make models` puts it, got no such file")
        if missing := missing_prompts(args.prompts):
            parser.error(f"expected --prompts with {' and '.join(missing)}, got {args.prompts}")
        if find_spec("torch") is None:
            raise SystemExit('expected PyTorch, which `pip install ".[train,split]"` installs, got none')
        for command in commands(RECIPE, model=model, prompts=args.prompts, work=work_folder(RECIPE), target=target):
            run(command)
    print(target)


if __name__ == "__main__":
    main()
