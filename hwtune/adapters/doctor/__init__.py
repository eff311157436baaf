"""Reads a machine: commands, /proc, a Python environment. Changes nothing."""
