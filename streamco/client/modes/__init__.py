"""What a user chooses for an answer: a race, speculation, or a split model; each plans, drives and records its own answers."""
