"""When something is learnt: the phase of training in which a measure changes most."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Rise(NamedTuple):
    """The step at which a curve is steepest, and by how much it rises between the measurements around it."""

    step: float
    height: float


def steepest_rise(steps: Sequence[float], values: Sequence[float]) -> Rise:
    """Of neighbouring measurements those with the largest rise a step; the step is in the middle between the two.

    Raises ValueError for fewer than two measurements.
    """
    if len(steps) < 2:
        raise ValueError(f"steps={list(steps)}: a rise needs two measurements or more.")
    rises, spans = np.diff(values), np.diff(steps)
    index = int(np.argmax(rises / spans))
    return Rise(float(steps[index] + spans[index] / 2), float(rises[index]))
