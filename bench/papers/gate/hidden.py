"""Does the device's hidden state of the prompt's last token tell whether the server's answer would be better?

The states are those of the device's model after its last norm, read once and kept in a file. The score is a ridge regression on them,
fitted on the other folds, and on the other tasks. ``python -m bench.papers.gate.hidden FILE --update PAGE`` puts the table between the
marks of a page; after ``make models``. Reading takes a quarter of an hour.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from llama_cpp import LLAMA_POOLING_TYPE_LAST, Llama
from numpy.typing import NDArray

from bench.pairs import model_file
from bench.papers.gate.recording import Answer, read_answers
from bench.papers.gate.routing import Floats, compare_lines, cross_fitted, gains_of, left_out
from bench.papers.gate.signals import PLAIN
from bench.papers.gate.split import MIX
from bench.tables import show_tables
from bench.tasks import questions_in_turns

__all__ = ["hidden_table", "main", "read_states"]

_LONGEST = 2048  # tokens of a prompt


def read_states(answers: Sequence[Answer], file: Path) -> NDArray[np.float32]:
    """Return the states, shape (answers, width), from the file if it has them."""
    if file.exists():
        states: NDArray[np.float32] = np.load(file)
        return states
    texts = {(each.task, each.id): each.messages for each in questions_in_turns(MIX)}
    model = Llama(
        str(model_file("0.5B", "Q4_0")),
        n_ctx=_LONGEST,
        n_batch=_LONGEST,
        n_ubatch=_LONGEST,
        n_threads=1,
        embedding=True,
        pooling_type=LLAMA_POOLING_TYPE_LAST,
        verbose=False,
    )
    rows = []
    for answer in answers:
        text = "".join(f"<|im_start|>{each['role']}\n{each['content']}<|im_end|>\n" for each in texts[answer.task, answer.question])
        rows.append(model.embed(f"{text}<|im_start|>assistant\n", normalize=False))
    states = np.array(rows, dtype=np.float32)
    np.save(file, states)
    return states


def hidden_table(answers: Sequence[Answer], states: NDArray[np.float32]) -> Iterator[str]:
    """Yield the lines of the table, in Markdown, beside the perplexity and the task."""
    gains, tasks = gains_of(answers), sorted({each.task for each in answers})
    rows: Floats = np.column_stack([np.ones(len(answers)), states.astype(np.float64)])
    kinds = np.array([[1.0, *(float(each.task == task) for task in tasks)] for each in answers])
    perplexity = np.array([PLAIN["perplexity, 16 tokens"](each) for each in answers])
    both = np.column_stack([rows, perplexity])
    penalty = 10.0 * states.shape[1]
    scores = {
        "perplexity, 16 tokens": perplexity,
        "task known": cross_fitted(answers, kinds, gains),
        "hidden state": cross_fitted(answers, rows, gains, penalty=penalty),
        "hidden state and perplexity": cross_fitted(answers, both, gains, penalty=penalty),
        "hidden state, fitted on other tasks": left_out(answers, rows, gains, penalty=penalty),
    }
    yield from compare_lines(answers, scores, {"less perplexity's": perplexity, "less the task's": scores["task known"]})


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, or put it on a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="keeps the states (.npy)")
    parser.add_argument("--update", type=Path, metavar="PAGE", help="put the table between the marks of this page")
    options = parser.parse_args(arguments)
    answers = read_answers()
    show_tables({"gate hidden": "\n".join(hidden_table(answers, read_states(answers, options.file)))}, options.update)


if __name__ == "__main__":
    main()
