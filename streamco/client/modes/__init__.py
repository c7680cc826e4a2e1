"""The modes that a user can choose: a race, speculation, or a split model. Each plans, runs and records its own answers."""
