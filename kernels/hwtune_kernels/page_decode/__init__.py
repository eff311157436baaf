"""Attention of one new token (q = 1) over a paged context, page by page."""
