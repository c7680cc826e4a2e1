"""A split model in virtual time: devices with the first layers and the head, and a server with the middle layers (HAT)."""
