"""Answers of a split model, whose first layers and head run on the device and whose middle layers run on servers (HAT)."""
