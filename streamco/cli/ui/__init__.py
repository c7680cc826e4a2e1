"""The terminal's user interface: line editing, live rendering and the status line."""
