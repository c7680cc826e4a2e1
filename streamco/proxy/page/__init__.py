"""A chat page for browsers: static files, and the routes that serve them."""
