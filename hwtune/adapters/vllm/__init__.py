"""Everything that meets vLLM: finding it, running it, and the plugin inside it."""
