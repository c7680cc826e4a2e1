"""The race machine: attempts, hand-over, migration, and what dispatch learns (DiSCo)."""
