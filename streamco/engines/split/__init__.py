"""The parts of a model that is split between a device and a server, each on its own thread (HAT)."""
