"""Attention kernels for paged KV caches. Imports nothing from hwtune."""
