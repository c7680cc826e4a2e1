"""Answers of a model whose ends are on the device and whose middle is at servers (HAT)."""
