"""Experiments: each file holds one `EXPERIMENT`, a record of functions that wires the rooms together."""
