"""The race machine: attempts, hand-over, migration, and what the dispatcher learns (DiSCo)."""
