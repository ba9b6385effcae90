"""What reaches a terminal: text from files, names and errors cannot steer it, and stores have their addresses.

Control characters (ESC, BEL, …), bidirectional overrides and halves of characters are shown as escapes: \\x1b.
"""

import re
import sys

SHOWN_AS: dict[str, str] = {}  # folders here, and the addresses of the stores that they stand for
# C0 without tab and line feed, DEL and C1; line separators and what turns text round; halves of characters.
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: object) -> str:
    """The text with everything that would steer a terminal as its escape; tabs and line feeds stay."""
    shown = str(text)
    for path, name in SHOWN_AS.items():
        shown = shown.replace(path, name)
    return STEERING.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), shown)


def put(text: object = "") -> None:
    """A line of a result on standard output."""
    print(printable(text))


def write(text: str) -> None:
    """Text that is data, as translations are: as it stands, unless a terminal shows it."""
    print(printable(text) if sys.stdout.isatty() else text, end="", flush=True)
