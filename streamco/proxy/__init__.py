"""An OpenAI-compatible server in front of a client: ``app.serving``, and ``streamco proxy`` on the command line."""
