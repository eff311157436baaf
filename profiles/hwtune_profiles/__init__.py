"""Hardware profiles as TOML, one accelerator each."""
