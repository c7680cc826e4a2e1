"""The experiments of the papers, each reproducible by one command."""
