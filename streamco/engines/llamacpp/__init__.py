"""The llama.cpp binding: its library, models, contexts and GGUF files, and the probes that test what works with them."""
