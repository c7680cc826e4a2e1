"""Pure decisions, one paper idea a file: numbers in, decision out."""
