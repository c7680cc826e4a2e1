"""The SDK: the part that an application embeds."""
