"""What devices send one another in a compiled program, read from its HLO text."""

import math
import re
from collections import defaultdict
from typing import NamedTuple

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = (.*?) ([a-z][a-z0-9-]*)\((.*)$")
_CALLED = re.compile(
    r"(?:calls|body|to_apply|branch_computations|true_computation|false_computation)=(\{[^}]*\}|%[\w.-]+)"
)
_NAME = re.compile(r"%([\w.-]+)")
_CONDITION = re.compile(r"condition=%([\w.-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_CHANNEL = re.compile(r"channel_id=(\d+)")
_SHAPE = re.compile(r"\b([a-z]+)(\d*)\w*\[([\d,]*)\]")
_SCATTERS = "all-reduce-scatter"  # opens the name of a computation in which a TPU's all-reduce keeps one part alone


class Traffic(NamedTuple):
    """How many times a program's collectives of one kind run, and the bytes of their arrays on a device, all together.

    Of a gather the bytes are those of what it gives, of a scatter of what it takes, so that kinds can be compared.
    """

    times: int
    bytes: int


class _Instruction(NamedTuple):
    name: str
    type: str
    opcode: str
    rest: str  # operands and attributes


def traffic(hlo: str) -> dict[str, Traffic]:
    """The collectives of one run of a compiled program by kind; those of a loop of unknown length count once.

    A collective that the compiler has cut into several fusions, so that it goes on beside other work, counts once;
    it is known by its channel, which collectives that stand apart may share.
    """
    entry, computations = _parsed(hlo)
    runs, fused = _runs(entry, computations), _called_by("fusion", computations)
    found: dict[tuple[str, str], Traffic] = {}
    for name, instructions in computations.items():
        types = {one.name: one.type for one in instructions}
        for one in instructions:
            kind = one.opcode.removesuffix("-start")
            if kind in KINDS and runs[name]:
                kind = "reduce-scatter" if kind == "all-reduce" and name.startswith(_SCATTERS) else kind
                channel = _CHANNEL.search(one.rest) if name in fused else None
                key = kind, channel[1] if channel else f"{name}/{one.name}"
                times = max(runs[name], found[key].times if key in found else 0)
                found[key] = Traffic(times, times * _bytes(one, types))
    return {kind: _total([each for (own, _), each in found.items() if own == kind]) for kind in KINDS}


def _total(of_kind: list[Traffic]) -> Traffic:
    return Traffic(sum(one.times for one in of_kind), sum(one.bytes for one in of_kind))


def _parsed(hlo: str) -> tuple[str, dict[str, list[_Instruction]]]:
    """The entry's name, and the instructions of every computation, callees before callers."""
    entry, computations = "", dict[str, list[_Instruction]]()
    own: list[_Instruction] = []
    for line in hlo.splitlines():
        if head := _COMPUTATION.match(line):
            own = computations.setdefault(head[2], [])
            entry = head[2] if head[1] else entry
        elif found := _INSTRUCTION.match(line):
            own.append(_Instruction(*found.groups()))
    return entry, computations


def _called_by(opcode: str, computations: dict[str, list[_Instruction]]) -> set[str]:
    """The computations that instructions of this kind call."""
    ones = (one for instructions in computations.values() for one in instructions if one.opcode == opcode)
    return {callee for one in ones for called in _CALLED.findall(one.rest) for callee in _NAME.findall(called)}


def _runs(entry: str, computations: dict[str, list[_Instruction]]) -> dict[str, int]:
    """How often each computation runs in one run of the program."""
    runs: dict[str, int] = defaultdict(int, {entry: 1})
    for name in reversed(computations):  # a text has callees before their callers
        for one in computations[name]:
            if one.opcode.endswith(("-update", "-done")):
                continue  # of what was started
            trips = _trips(one, computations) if one.opcode == "while" else 1
            for called in _CALLED.findall(one.rest):
                for callee in _NAME.findall(called):
                    runs[callee] += runs[name] * trips
    return runs


def _trips(loop: _Instruction, computations: dict[str, list[_Instruction]]) -> int:
    """How often a loop's body runs: as the compiler says, or up to the number that its condition compares with.

    Loops that JAX makes of a scan count from 0 by 1. 1 where the condition is another.
    """
    if known := _TRIPS.search(loop.rest):
        return int(known[1])
    condition = _CONDITION.search(loop.rest)
    instructions = computations.get(condition[1], []) if condition else []
    numbers = {one.name: one.rest.partition(")")[0] for one in instructions if one.opcode == "constant"}
    for one in instructions:
        if one.opcode == "compare" and "direction=LT" in one.rest:
            bounds = [numbers[name] for name in _operands(one) if name in numbers]
            return int(bounds[0]) if bounds else 1
    return 1


def _bytes(one: _Instruction, types: dict[str, str]) -> int:
    operands = sum(bytes_of(types.get(name, "")) for name in _operands(one))
    result = bytes_of(one.type)
    # What starts a collective gives its operands back beside its result.
    return max(operands, result - operands if one.opcode.endswith("-start") else result)


def _operands(one: _Instruction) -> list[str]:
    return _NAME.findall(one.rest.partition(")")[0])


def bytes_of(type_text: str) -> int:
    """The bytes of arrays, as `(bf16[8,128]{1,0}, u32[])` names them."""
    bits = 0
    for letters, width, sizes in _SHAPE.findall(type_text):
        item = 8 if letters == "pred" else int(width or 0)
        bits += item * math.prod(int(size) for size in sizes.split(",") if size)
    return bits // 8
