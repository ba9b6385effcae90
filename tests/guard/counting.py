"""What a program costs, in counts that are the same on a busy machine: of its trace, and of what is compiled."""

import re
from collections import Counter
from typing import NamedTuple

import jax

from attention_jax.training.collectives import traffic
from attention_jax.training.cost import flops


class Count(NamedTuple):
    """What is counted: how much more is no worse, as a share of what is stored, and whether the compiler decides it."""

    tolerance: float
    is_compiled: bool = True


COUNTS = {
    "product FLOPs": Count(0.02, is_compiled=False),  # a scan's as often as it runs
    "equations": Count(0.05, is_compiled=False),  # of the trace: releases of jax differ by a hundredth
    "FLOPs": Count(0.02),  # of all instructions, a loop's once, as in all that follow
    "bytes": Count(0.05),  # read and written
    "memory": Count(0.10),  # bytes of temporaries at once
    "instructions": Count(0.05),
    "fusions": Count(0.05),
    "loops": Count(0.05),
    "products": Count(0.05),
    "updates": Count(0.05),
    "copies": Count(0.05),
    "collectives": Count(0.0),
    "bytes sent": Count(0.02),
}
OPCODES = {
    "fusions": ("fusion",),
    "loops": ("while",),
    "products": ("dot", "convolution"),
    "updates": ("dynamic-update-slice",),
    "copies": ("copy",),
}

_OPCODE = re.compile(r"^\s+(?:ROOT )?%?[\w.-]+ = .*? ([a-z][a-z0-9-]*)\(", re.MULTILINE)


def counts_of(program):
    """The counts of a `Program` by name."""
    with program.context():
        traced = program.function.trace(*program.arguments)
        products = flops(program.function, *program.arguments)
        compiled = traced.lower().compile()
    text, found = compiled.as_text(), compiled.cost_analysis()
    return {
        "product FLOPs": int(products),
        "equations": _equations(traced.jaxpr),
        "FLOPs": int(found["flops"]),
        "bytes": int(found["bytes accessed"]),
        "memory": compiled.memory_analysis().temp_size_in_bytes,
        **counted(text),
    }


def counted(text):
    """The counts of the text of a compiled program."""
    opcodes, sent = Counter(_OPCODE.findall(text)), traffic(text).values()
    return {
        "instructions": opcodes.total(),
        **{name: sum(opcodes[opcode] for opcode in of_name) for name, of_name in OPCODES.items()},
        "collectives": sum(one.times for one in sent),
        "bytes sent": sum(one.bytes for one in sent),
    }


def _equations(jaxpr):
    """How many equations a trace has, with those of functions inside."""
    inner = [value for one in jaxpr.eqns for value in jax.tree.leaves(one.params) if hasattr(value, "eqns")]
    return len(jaxpr.eqns) + sum(map(_equations, inner))
