"""Split inference on the device (HAT): a prompt in chunks, rows in flight, and what is sent again after a loss."""
