"""Names of TFDS splits, such as "train[:10%]": whether two of them have examples in common."""

import re
from typing import NamedTuple

ALL = "all"  # every split of a data set
PART = re.compile(r"(?P<name>\w+)(\[(?P<first>-?[\d_]+)?(?P<unit>%|shard)?:(?P<last>-?[\d_]+)?(%|shard)?\])?(\(\w+\))?")


class Edge(NamedTuple):
    """Where a slice begins or ends: `value` percent, shards or examples, from the split's start or its end."""

    unit: str
    is_from_end: bool
    value: int


class Part(NamedTuple):
    """A stretch of a split, from `first` to before `last`; None: the split's start or end."""

    name: str
    first: Edge | None
    last: Edge | None


def overlap(one: str, other: str) -> bool:
    """Whether two names, sums such as "train[:10%]+test" included, may have examples in common.

    Slices are apart only if their edges show it, in one unit and counted from one side: `train[:10%]`, `train[10%:]`.
    """
    return any(_meet(_part(a), _part(b)) for a in one.split("+") for b in other.split("+"))


def _meet(one: Part, other: Part) -> bool:
    if ALL in (one.name, other.name):
        return True
    return one.name == other.name and not (_is_before(one, other) or _is_before(other, one))


def _is_before(one: Part, other: Part) -> bool:
    """Whether the first slice surely ends before the second begins."""
    if one.last is None or other.first is None:
        return False
    return one.last[:2] == other.first[:2] and one.last.value <= other.first.value


def _part(text: str) -> Part:
    """What a name says; of a form that is not known, the whole split."""
    if not (found := PART.fullmatch(text.strip())):
        return Part(text.strip().partition("[")[0], None, None)
    units = re.findall(r"%|shard", text.partition("[")[2])
    unit = units[0] if units else ""
    return Part(found["name"], _edge(found["first"], unit), _edge(found["last"], unit))


def _edge(written: str | None, unit: str) -> Edge | None:
    if not written:
        return None
    value = int(written)
    if unit == "%":
        return Edge(unit, False, value % 100 if value < 0 else value)
    return Edge(unit, value < 0, value)
