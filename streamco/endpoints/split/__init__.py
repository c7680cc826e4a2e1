"""The endpoint for a split model: the servers of its middle layers, and a session there for each answer."""
