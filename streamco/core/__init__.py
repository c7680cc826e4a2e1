"""State machines without IO, clock or dice; they compose policies."""
