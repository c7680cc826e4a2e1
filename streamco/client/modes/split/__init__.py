"""Answers of a model whose ends run on the device and whose middle runs on servers (HAT)."""
