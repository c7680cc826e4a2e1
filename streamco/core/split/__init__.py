"""Split inference on the device (HAT): the prompt's chunks, the rows in flight, and what is sent again after a loss."""
