"""The llama.cpp binding: library, model, context, GGUF files, and what is probed about them."""
