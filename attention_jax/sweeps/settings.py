"""How a sweep or a search runs: sections that a config may have, which change no cell and are not part of one."""

from ml_collections import ConfigDict

SWEEP = {
    "by_default": False,  # whether the config is meant for a sweep, so that --mode may be left out
    "engine": "inline",  # in this process; or processes, slurm
    "workers": 2,  # processes, or tasks of a job array
    "metric": "",  # what is compared: validation.loss,validation.bleu: the first leads; empty: config.train.best_by
    "baseline": "",  # the overrides of the row that others are tested against, as KEY=VALUE,…; empty: the first row
    "within": (),  # keys that make groups: settings are compared within each, with its own best and baseline
    "match": "",  # flops, parameters: every variant has as many as the baseline, within 1%
    "match_by": "train.steps",  # the whole number that is solved for
    "match_unit": 1,  # of which it is a multiple, such as the number of heads for a width
    "any_code": False,  # take cells that other versions of the code made for done
    "partition": "",  # of SLURM, and what a task gets there
    "nodes": 1,  # of a worker, and its processes on each: more than one of both together train a cell
    "tasks_per_node": 1,
    "minutes": 60,
    "gpus": 0,
    "cpus": 1,
}

POPULATION = {
    "how": "auto",  # loop: one after another through one program; vmap: side by side; auto: loop on CPUs, else vmap
    "most": 0,  # members side by side; 0: as many as fit into memory
    "dynamic": (),  # keys that must not need a program of their own
    "halving": 0.0,  # the share of settings that is dropped at every rung, all their seeds together
    "rungs": (),  # steps at which they are ranked by train.best_by, among those that agree on sweep.within
    "halving_seeds": 0,  # how many seeds choose at the rungs and are not reported; 0: all choose, and are reported
    "across": False,  # whether settings of different programs are ranked together
}

SEARCH = {
    "sampler": "tpe",  # Optuna's, which asks for settings: tpe, random, qmc, or gp (needs PyTorch)
    "pruner": "none",  # which drops settings at every evaluation but the last: median, halving
    "trials": 32,  # settings in all
    "batch": 8,  # of them asked for at once, which train together
    "choosing_seeds": 1,  # of a trial, from 0; what is told of it is their mean
    "reporting_seeds": 3,  # the next ones, of the winner alone: its estimate, for the seeds that chose were lucky
    "seed": 0,  # of the sampler
}

SECTIONS = {"sweep": SWEEP, "population": POPULATION, "search": SEARCH}


def without_settings(config: ConfigDict) -> ConfigDict:
    """A config without the sections that say how cells are run."""
    if not any(name in config for name in SECTIONS):
        return config
    return ConfigDict({name: value for name, value in config.to_dict().items() if name not in SECTIONS}).lock()
