"""Records to tables, JSON, CSV and Markdown. Computes nothing."""
