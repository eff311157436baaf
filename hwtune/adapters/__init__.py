"""The only place where optional packages and the outside world appear."""
