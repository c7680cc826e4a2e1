"""Synera's evaluation (section 6): what a budget buys by each rule, in quality, tokens of the server, time and cost."""
