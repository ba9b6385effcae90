"""The mode of a search, and how a folder of many cells answers."""

from attention_jax.runs.experiment import Experiment, Request
from attention_jax.runs.folder import hold
from attention_jax.runs.links import refuse_links
from attention_jax.sweeps.answer import write_answer
from attention_jax.sweeps.folder import Sweep, is_search
from attention_jax.sweeps.found import write_found
from attention_jax.sweeps.searching import search as search_for
from attention_jax.terminal import put


def search(experiment: Experiment, request: Request) -> None:
    """Ask for settings a batch at a time, told what those before came to; then measure the best with fresh seeds."""
    print_answer(search_for(experiment, request))


def print_answer(sweep: Sweep) -> None:
    """Write the tables, figures and page of a sweep or a search, and print its table and where its page is."""
    refuse_links(sweep.path)
    with hold(sweep.path, wait=True):
        page = write_found(sweep) if is_search(sweep.path) else write_answer(sweep)
        put((sweep.path / "table.md").read_text(encoding="utf-8"))
    put(page)
