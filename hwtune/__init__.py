"""hwtune: derive, launch, prove and measure vLLM's KV-cache page."""
