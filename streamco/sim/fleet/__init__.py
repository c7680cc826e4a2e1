"""The simulation of a fleet: drafting devices, links and target servers (DSD)."""
