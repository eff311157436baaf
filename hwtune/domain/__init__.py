"""Pure values and functions: no files, processes, clock, environment or optional packages."""
