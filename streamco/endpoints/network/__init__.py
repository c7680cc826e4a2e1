"""What endpoints share to reach a server: keys, headers, proxies, connection errors, and one set of connections per event loop."""
