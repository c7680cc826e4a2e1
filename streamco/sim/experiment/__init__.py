"""Experiment files: scenarios and sweeps, the parallel runner, result tables and plots."""
