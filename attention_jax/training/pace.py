"""How fast steps are: their time, tokens a second, and how many of them a call may run."""

from attention_jax.training.peaks import peak_of_all

CALL = 5.0  # seconds that a call takes at most, so that a stop is heard in time


class Pace:
    """Wall time of steps since they were last logged; calls that compiled are left out.

    `most` is how many steps the next call may run: 1 until a step's time is known.
    """

    def __init__(self, most: int = 1):
        self.most = most
        self._seconds, self._steps, self._items, self._flops, self._members = 0.0, 0, 0.0, 0.0, 1

    def add(self, seconds: float, steps: int, members: int, items: float, flops: float) -> None:
        """A call of so many steps of each member, with the items and the model's FLOPs of all of them."""
        self._seconds += seconds
        self._steps += steps
        self._items += items
        self._flops += flops
        self._members = members
        self.most = max(int(CALL * self._steps / max(self._seconds, 1e-9)), 1)

    def values(self) -> dict[str, float]:
        """The mean time of a member's step, the tokens a second of all members, and MFU, where a call was timed.

        MFU is the model's FLOPs over what the devices could have done in that time (Chowdhery et al. 2022, app. B).
        """
        if not self._steps:
            return {}
        values = {
            "train.step_seconds": self._seconds / self._steps / self._members,
            "train.tokens_per_second": self._items / self._seconds,
        }
        if self._flops and (peak := peak_of_all()):
            values["train.mfu"] = self._flops / self._seconds / peak
        return values
