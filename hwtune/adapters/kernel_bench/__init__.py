"""Attention kernels timed alone, on the device that is here."""
