"""The papers' experiments again, each by one command: ``python -m bench.papers.kept``."""
