"""Tasks: what is trained and how it is measured, each task with a `Session` that is opened once."""
