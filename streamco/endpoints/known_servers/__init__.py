"""What is known about servers with OpenAI's API: providers, prices, and how to recognise a server."""
