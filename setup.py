"""Which packages are installed: those of attention_jax; experiments and configs lie in it, not beside it."""

from setuptools import find_packages, setup

INSIDE = {
    "attention_jax.configs": "configs",
    "attention_jax.experiments": "experiments",
    "attention_jax.experiments._peers": "experiments/_peers",
}

setup(packages=[*find_packages(include=["attention_jax*"]), *INSIDE], package_dir=INSIDE)
