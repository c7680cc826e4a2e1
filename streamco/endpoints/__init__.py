"""Network and device shells, one backend a file."""
