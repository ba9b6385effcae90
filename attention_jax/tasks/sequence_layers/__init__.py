"""Layers that mix the tokens of a sequence, and their costs."""
