"""What are a trained Transformer's heads worth, what do they look at, and what do they carry?

    python launch.py --config=configs/heads.py --config.run=FOLDER
    python launch.py --config=configs/heads.py:smoke --config.run=FOLDER

FOLDER is a finished run of a Transformer that translates, or, with --config.parts="('removing','roles','page')", of a
language model on a text. All its seeds are measured; heads.html shows the first's on one sentence, each head switched
on and off. One is trained by

    python launch.py --config=configs/nmt.py:transformer_book,embedded --config.seeds=0,1,2,3,4 --workdir=FOLDER
"""

from ml_collections import ConfigDict

from attention_jax.sweeps.settings import POPULATION, SWEEP

VARIANTS = {"core": {}, "smoke": {"sentences": 40, "orders": 2, "couples": 20}}


def get_config(variant="core"):
    if variant not in VARIANTS:
        raise ValueError(f"no variant {variant!r}: choose one of {', '.join(VARIANTS)}")
    return ConfigDict(
        {
            "experiment": "heads",
            "seeds": (0,),  # of random orders and of sentences that are drawn; the run has its own
            "run": "",  # a finished run's folder
            "parts": (
                "removing",
                "roles",
                "patching",
                "page",
            ),  # patching needs the embedded corpus, whose grammar is known
            "split": "test",  # of translations, that heads are measured on
            "ordering": "validation",  # that they are put in order on: by what they are worth, and to be pruned
            "sentences": 200,  # of each, at most; of a language model as many held-out windows
            "orders": 10,  # random ones in which heads are pruned
            "tolerance": 0.1,  # nats a token: what the loss may rise by where heads are spared
            "roles": {
                "positional": 0.9,  # of tokens, at the least, look most at one relative position
                "rare": 0.5,  # of tokens, at the least, look most at the rarest token
                "aligned": 0.3,  # the alignment error rate, at the most
            },
            "couples": 200,  # of sentences that differ in one word
            "precision": {"matmul": "default"},
            "population": POPULATION,
            "sweep": SWEEP,
        }
        | VARIANTS[variant]
    )
