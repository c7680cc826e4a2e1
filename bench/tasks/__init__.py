"""Tasks with a score: chat prompts, references, and what an answer is worth. Shared by the experiments that ask about quality."""

from __future__ import annotations

from bench.tasks.intervals import Interval, mean_interval, resample
from bench.tasks.questions import TASKS, Question, load_questions, questions_in_turns

__all__ = ["TASKS", "Interval", "Question", "load_questions", "mean_interval", "questions_in_turns", "resample"]
