"""The race machine: attempts, hand-over, migration, and learning for the dispatcher (DiSCo)."""
