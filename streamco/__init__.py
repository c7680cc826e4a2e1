"""One streamed answer, made by a small model on the user's machine and a remote endpoint together."""
