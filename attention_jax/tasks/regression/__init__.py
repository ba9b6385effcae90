"""Attention is regression: estimators of a function from pairs, each with its best numbers, on thousands of draws."""
