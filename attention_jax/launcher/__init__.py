"""The launcher: flags, modes and messages. `python launch.py --help` says what it does."""
