"""Attacks on real processes: ``make attack`` runs all of them at full size, and the tests a short version of each."""
