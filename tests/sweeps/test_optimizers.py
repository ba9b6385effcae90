"""A sweep over the optimizer: what its plan puts into one program."""

import time

from attention_jax.launcher import experiments
from attention_jax.runs.experiment import Request
from attention_jax.sweeps.planning import make_plan
from attention_jax.sweeps.space import grid, product, zipped
from attention_jax.training.hyper import OWN
from configs import positional_encoding


def planned(space, workdir):
    config = positional_encoding.get_config("smoke")
    request = Request(
        config, workdir, time.perf_counter(), False, space=lambda: space, configure=lambda variant: config
    )
    return make_plan(experiments.load(config.experiment), request)


def test_cells_that_differ_in_numbers_of_one_optimizer_share_a_program(tmp_path):
    adams = product([{"optimizer.name": "adam"}], grid("optimizer.b1", (OWN, 0.8)), grid("optimizer.eps", (1e-8, 1e-6)))
    others = product(zipped(grid("optimizer.name", ("sgd", "lion")), grid("optimizer.b2", (OWN, 0.99))))
    programs = planned([*adams, *others], tmp_path).plan.programs
    assert [(program.config["optimizer.name"], sum(map(len, program.waves))) for program in programs] == [
        ("adam", 4),
        ("sgd", 1),
        ("lion", 1),
    ]
