"""Pure decisions, one idea of a paper per file: numbers in, decision out."""
