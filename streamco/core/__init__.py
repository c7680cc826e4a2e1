"""State machines without IO, clock or random source; they compose policies."""
