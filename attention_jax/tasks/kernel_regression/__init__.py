"""Kernel regression: estimators of a curve or of classes, measured on many draws of the data."""
