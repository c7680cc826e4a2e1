"""The verifier's scheduler: sessions, admission and batches (Synera 4.5)."""
