"""An OpenAI-compatible HTTP server over one engine: ``app.make_app``, ``app.serving``, and ``streamco serve`` on the command line."""
