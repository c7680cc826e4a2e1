"""The commands that make a draft layer are ones that the programs take, and nothing is begun that can't end."""

from __future__ import annotations

import gzip
from importlib import import_module
from pathlib import Path

import pytest
from msgspec.structs import replace

from bench.data import make_draft_layer
from bench.data.make_draft_layer import RECIPE, commands, main, work_folder
from bench.fetch_models import MODELS
from streamco.engines.llamacpp.cache_dir import cache_folder
from streamco.engines.llamacpp.draft_model import draft_layer_folder

NAME = Path(MODELS[RECIPE.model].file).stem


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("STREAMCO_DATA", raising=False)


def has_model() -> None:
    (cache_folder("models") / MODELS[RECIPE.model].file).touch()


def has_prompts(folder: Path) -> None:
    for texts in RECIPE.texts:
        with gzip.open(folder / texts.prompts, "wt") as file:
            file.write('{"prompt": "x"}\n')


def run(monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    monkeypatch.setattr("sys.argv", ["make_draft_layer", *options])
    main()


def test_all_texts_come_before_the_training_and_the_weights_last(tmp_path: Path) -> None:
    made = list(commands(RECIPE, model=Path("m.gguf"), prompts=Path("p"), work=tmp_path, target=Path("t.npz")))
    assert [command[0] for command in made] == ["bench.data.draft_text"] * len(RECIPE.texts) + ["bench.data.train_draft"] * 2
    train, ship = made[-2:]
    start = train.index("--kinds") + 1
    assert train[start : train.index("--absent")] == tuple(texts.kind for texts in RECIPE.texts)
    assert ship[-2:] == ("--ship", "t.npz")
    assert ship[: ship.index("--ship")] == train[: start - 1]


def test_the_programs_take_the_recipes_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("gguf")
    for module, *options in commands(RECIPE, model=tmp_path / "none.gguf", prompts=tmp_path, work=tmp_path, target=tmp_path / "t.npz"):
        monkeypatch.setattr("sys.argv", [module, *options])
        with pytest.raises((OSError, ValueError)):  # no model, no weights: beyond the command line
            import_module(module).main()
    assert not capsys.readouterr().err


def test_what_is_missing_is_said_before_anything_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(make_draft_layer, "run", lambda _: pytest.fail("nothing can be run"))
    with pytest.raises(SystemExit, match=r"expected Qwen2\.5-Coder-1\.5B.*gguf in the cache folder"):
        run(monkeypatch)
    has_model()
    for options in ((), ("--prompts", str(tmp_path))):
        with pytest.raises(SystemExit):
            run(monkeypatch, *options)
        assert "expected --prompts with gsm8k_test.jsonl.gz and spec_bench.jsonl.gz" in capsys.readouterr().err
    has_prompts(tmp_path)
    monkeypatch.setattr(make_draft_layer, "find_spec", lambda _: None)
    with pytest.raises(SystemExit, match="expected PyTorch"):
        run(monkeypatch, "--prompts", str(tmp_path))


def test_a_layer_that_is_there_is_not_made_again(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = draft_layer_folder() / f"{NAME}.npz"
    path.touch()
    run(monkeypatch)
    assert capsys.readouterr().out == f"{path}\n"


def test_another_recipe_has_another_folder_so_that_no_old_texts_are_taken() -> None:
    other = replace(RECIPE, training=(*RECIPE.training, "--seed", "1"))
    assert work_folder(RECIPE) == work_folder(RECIPE) != work_folder(other)


def test_the_commands_run_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has_model()
    has_prompts(tmp_path)
    began: list[str] = []
    monkeypatch.setattr(make_draft_layer, "find_spec", lambda _: object())
    monkeypatch.setattr(make_draft_layer, "run", lambda command: began.append(command[0]))
    run(monkeypatch, "--prompts", str(tmp_path))
    assert began == ["bench.data.draft_text"] * len(RECIPE.texts) + ["bench.data.train_draft"] * 2


def test_a_command_that_fails_ends_the_run() -> None:
    with pytest.raises(SystemExit, match=r"streamco\.nothing: expected it to end well, got status 1"):
        make_draft_layer.run(["streamco.nothing"])
