"""The speculation machine: drafts, verification, pre-drafting and mode selection (Synera, DSD)."""
