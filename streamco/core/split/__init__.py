"""Split inference on the device (HAT): the prompt's chunks, the rows in flight, and the rows that are sent again after a loss."""
