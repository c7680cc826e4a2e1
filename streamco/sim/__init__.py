"""The same machines in virtual time."""
