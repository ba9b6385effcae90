"""The one exception whose message is for the user: one line that names the file or key and the fix."""


class UserError(ValueError):
    """Something the user gave cannot be used; `launch.py` prints the message and exits with status 1."""
