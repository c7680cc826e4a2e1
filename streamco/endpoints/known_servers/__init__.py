"""What is known about the servers that speak OpenAI's API: providers, prices, and how a server is recognised."""
