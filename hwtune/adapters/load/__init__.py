"""The load generator: a streaming HTTP client whose own cost does not show in what it measures."""
