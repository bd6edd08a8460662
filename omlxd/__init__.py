"""A macOS daemon that serves local language models with MLX and keeps the machine alive."""

__version__ = "0.1.0"
