"""A split model as an endpoint: the servers of its middle layers, and a session there for each answer."""
