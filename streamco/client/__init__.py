"""The SDK: what an application embeds."""
