"""Recording acceptance sequences: what is kept of a row, and what of a broken run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench.counted.trees import read_recorded
from bench.data import record_acceptance
from bench.data.record_acceptance import Recording, describe_model, main, masses_of, read_row
from streamco.sim.workload.trace_files import read_about, read_trace

ROW = {
    "source": "gsm8k-1",
    "prompt_length": 9,
    "output_length": 2,
    "acceptance_seq": [1, 0],
    "confidences": [200, 90],
    "runners_up": [10, 80],
    "ranks": "05",
    "attention": "0a0b" * 2,
    "likeliest": "c80a" * 2,
}


def test_masses_are_cumulative_from_the_rows_own_token_backwards() -> None:
    attention = np.array([[0.5, 0.1, 0.4], [0.3, 0.3, 0.4]], dtype=np.float32)
    assert masses_of(attention)[:4] == [102, 153, 255, 255]
    assert len(masses_of(attention)) == record_acceptance.DEPTH


def test_a_row_has_the_rank_of_the_targets_token_and_the_likeliest_probabilities() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.15] + [0.01] * 10, dtype=np.float32))
    assert read_row(logits, 0) == (0, [128, 64, 38, 3, 3, 3, 3, 3])
    assert [read_row(logits, token)[0] for token in (1, 2)] == [1, 2]
    assert read_row(np.arange(40, 0, -1, dtype=np.float32), 30)[0] == 9


def test_a_broken_line_is_dropped_and_what_is_whole_is_not_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "gsm8k.0.5B.jsonl"
    path.write_text(json.dumps(ROW) + "\n" + json.dumps(ROW)[:30])
    recording = Recording(tmp_path, "gsm8k", "0.5B")
    assert recording.sources == {"gsm8k-1"}
    recording.add({**ROW, "source": "gsm8k-2"})
    assert [json.loads(line)["source"] for line in path.read_text().splitlines()] == ["gsm8k-1", "gsm8k-2"]


def test_a_packaged_trace_says_what_it_is_and_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_acceptance, "TRACES", tmp_path / "traces")
    Recording(tmp_path, "gsm8k", "0.5B").add(ROW)
    main([str(tmp_path), "--package", "--target", "1.5B"])
    trace = str(tmp_path / "traces" / "gsm8k_qwen.jsonl")
    about = read_about(trace)
    assert about["about"].startswith("1 GSM8K test questions")
    assert (about["target"], about["draft"]) == ("Qwen2.5-Coder-1.5B-Instruct Q4_K_M", "Qwen2.5-Coder-0.5B-Instruct Q4_K_M")
    [row] = read_trace(trace)
    assert (row.ranks, row.attention) == (b"\0\5", bytes.fromhex("0a0b0a0b"))
    assert "likeliest" not in Path(trace).read_text()


def test_a_trace_of_written_answers_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_acceptance, "TRACES", tmp_path / "traces")
    Recording(tmp_path, "cnn_dailymail", "0.5B").add(ROW)
    main([str(tmp_path), "--package", "--target", "1.5B", "--answers", str(tmp_path)])
    about = read_about(str(tmp_path / "traces" / "cnn_dailymail_qwen.jsonl"))
    assert about["about"].startswith("1 questions of cnndm, as bench/tasks asks them")
    assert "up to 256 tokens" in about["about"]
    assert about["target"] == "Qwen2.5-Coder-1.5B-Instruct Q4_0"
    assert "exact" not in about["how"]


def test_ranks_are_packaged_as_the_bench_of_trees_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ranks.jsonl"
    monkeypatch.setattr(record_acceptance, "RANKS", path)
    shares = "c80a050301010000"
    for task, ranks in (("humaneval", "009"), ("gsm8k", "18")):
        Recording(tmp_path, task, "0.5B").add({**ROW, "source": task, "ranks": ranks, "likeliest": shares * len(ranks)})
    Recording(tmp_path, "gsm8k", "Q4_0").add(ROW)
    main([str(tmp_path), "--package-ranks", "--target", "1.5B", "--drafts", "0.5B"])
    assert json.loads(path.read_text().splitlines()[0])["draft"] == "Qwen2.5-Coder-0.5B-Instruct Q4_K_M"
    first, second = read_recorded(path)
    assert (first.task, first.ranks, second.task, second.ranks) == ("gsm8k", (1, 8), "humaneval", (0, 0, 8))
    assert first.shares == (tuple(share / 255 for share in bytes.fromhex(shares)),) * 2


def test_without_recordings_of_the_draft_model_no_ranks_are_packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_acceptance, "RANKS", tmp_path / "ranks.jsonl")
    with pytest.raises(SystemExit, match=r"expected recordings of 0\.5B, got none"):
        main([str(tmp_path), "--package-ranks", "--target", "1.5B", "--drafts", "0.5B"])
    assert not (tmp_path / "ranks.jsonl").exists()


def test_models_have_their_names() -> None:
    assert describe_model("Q8_0") == "SmolLM2-135M-Instruct Q8_0"
    assert describe_model("pruned") == "SmolLM2-135M-Instruct Q8_0, layers 24 to 26 of 30 left out"
