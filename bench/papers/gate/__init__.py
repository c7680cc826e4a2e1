"""Who should answer: signals of a device's answer, while it is written, that the server's would be better."""
