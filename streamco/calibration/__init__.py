"""Calibration: measuring a pair of models and fitting its profile."""
