"""What endpoints share on their way to a server: keys, headers, proxies, errors of the connection, one set of connections a loop."""
