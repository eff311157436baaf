"""Attention of one long query chunk (1 < q) over a paged context."""
