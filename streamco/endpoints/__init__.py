"""The endpoints: the shells around the network and the device, one backend per file."""
