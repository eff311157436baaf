"""vLLM's V1 scheduler, played token by token, and what each step is for the backends."""
