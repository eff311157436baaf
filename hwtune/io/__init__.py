"""The only place that opens files: configs, profiles, logs, run directories."""
