"""The endpoints, which talk to servers and to the device; one backend per file."""
