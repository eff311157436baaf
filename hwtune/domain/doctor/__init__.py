"""What a machine and a Python environment show before any server starts: parsers and findings."""
