"""Layers that let the tokens of a sequence see one another, and what they cost."""
