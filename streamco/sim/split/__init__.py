"""Devices with the first layers and the head, and a server with the middle layers, in virtual time (HAT)."""
