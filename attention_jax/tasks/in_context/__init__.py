"""Regression in context: a Transformer that is trained on draws of functions, compared with estimators."""
