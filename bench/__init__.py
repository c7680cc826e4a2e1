"""One question a file; ``python -m bench`` runs them all."""
