"""Training in PyTorch, to be measured beside the project's own: a JSON object for every line of standard input.

    echo | python torch_train.py --batches=FILE.npz --model=transformer --width=256 --layers=3 --heads=8

FILE.npz has the padded ids of sentence pairs, `source` and `target` [pairs, length] with 0 as padding, and the sizes of
both vocabularies, `vocabularies`. The step is Adam's on the mean cross entropy of target tokens, with dropout and
gradients clipped at norm 1. Rates are target tokens a second: the median of the steps of so many seconds, which go on
where those of the line before ended.
"""

import argparse
import json
import math
import statistics
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional

PADDING, BEGIN = 0, 1  # as in the project's vocabularies


class Additive(nn.Module):
    """Bahdanau's score, softmax over the words of the source, and the mean of the memory that it weighs."""

    def __init__(self, width, rate):
        super().__init__()
        self.of_query = nn.Linear(width, width, bias=False)
        self.of_key = nn.Linear(width, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)
        self.rate = rate

    def forward(self, query, memory, keys, is_padding):
        scores = self.score(torch.tanh(self.of_query(query)[:, None] + keys)).squeeze(-1)
        weights = functional.dropout(scores.masked_fill(is_padding, -math.inf).softmax(-1), self.rate, self.training)
        return torch.bmm(weights[:, None], memory)


class Bahdanau(nn.Module):
    """A recurrent encoder, and a decoder whose every step reads what attention finds for the state before it."""

    def __init__(self, vocabularies, width, layers, rate, **unused):
        super().__init__()
        self.embed_source, self.embed_target = (nn.Embedding(size, width) for size in vocabularies)
        self.encoder = nn.GRU(width, width, layers, dropout=rate, batch_first=True)
        self.decoder = nn.GRU(2 * width, width, layers, dropout=rate, batch_first=True)
        self.attention = Additive(width, rate)
        self.logits = nn.Linear(width, vocabularies[1])

    def forward(self, source, inputs):
        memory, state = self.encoder(self.embed_source(source))
        keys, is_padding, found = self.attention.of_key(memory), source == PADDING, []
        for word in self.embed_target(inputs).split(1, dim=1):
            context = self.attention(state[-1], memory, keys, is_padding)
            output, state = self.decoder(torch.cat([context, word], -1), state)
            found.append(output)
        return self.logits(torch.cat(found, dim=1))


class Transformer(nn.Module):
    """PyTorch's own layers between embeddings with sinusoids and a projection to the vocabulary."""

    def __init__(self, vocabularies, width, layers, rate, heads, feed_forward):
        super().__init__()
        self.embed_source, self.embed_target = (nn.Embedding(size, width) for size in vocabularies)
        self.layers = nn.Transformer(width, heads, layers, layers, feed_forward, rate, batch_first=True)
        self.logits = nn.Linear(width, vocabularies[1])
        self.register_buffer("positions", sinusoids(256, width))

    def forward(self, source, inputs):
        is_padding, length = source == PADDING, inputs.shape[1]
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        read, write = self.placed(self.embed_source(source)), self.placed(self.embed_target(inputs))
        masks = {"src_key_padding_mask": is_padding, "memory_key_padding_mask": is_padding}
        return self.logits(self.layers(read, write, tgt_mask=future, tgt_is_causal=True, **masks))

    def placed(self, x):
        return x * math.sqrt(x.shape[-1]) + self.positions[: x.shape[1]]


def sinusoids(length, width):
    angles = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
    return torch.stack([angles.sin(), angles.cos()], -1).reshape(length, width)


MODELS = {"bahdanau": Bahdanau, "transformer": Transformer}


class Training:
    """A model, and the batches that it has not read."""

    def __init__(self, asked):
        data = np.load(asked.batches)
        self.source, self.target = (torch.from_numpy(data[side].astype(np.int64)) for side in ("source", "target"))
        sizes = {name: getattr(asked, name) for name in ("width", "layers", "rate", "heads", "feed_forward")}
        self.model = MODELS[asked.model](tuple(data["vocabularies"].tolist()), **sizes)
        self.forward = torch.compile(self.model) if asked.compile else self.model
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=asked.learning_rate)
        self.batch, self.batches = asked.batch, iter(())

    def rate(self, seconds):
        """The median rate of the steps of so many seconds, of full batches alone."""
        rates: list[float] = []
        until = time.perf_counter() + seconds
        while len(rates) < 5 or time.perf_counter() < until:
            rows = self.next_rows()
            if len(rows) == self.batch:
                started = time.perf_counter()
                tokens = step(self.model, self.forward, self.optimizer, self.source[rows], self.target[rows])
                rates.append(tokens / (time.perf_counter() - started))
        return statistics.median(rates)

    def next_rows(self):
        """The rows of the next batch; each epoch draws its order anew."""
        rows = next(self.batches, None)
        if rows is None:
            self.batches = iter(torch.randperm(len(self.source)).split(self.batch))
            rows = next(self.batches)
        return rows


def step(model, forward, optimizer, source, target):
    """One step of Adam; the number of target tokens."""
    inputs = torch.cat([torch.full_like(target[:, :1], BEGIN), target[:, :-1]], dim=1)
    logits, count = forward(source, inputs), int((target != PADDING).sum())
    loss = functional.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PADDING)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", required=True)
    parser.add_argument("--model", choices=MODELS, required=True)
    for name, default in (
        ("width", 32),
        ("layers", 2),
        ("heads", 4),
        ("feed_forward", 64),
        ("batch", 64),
        ("threads", 2),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, value in (("rate", 0.1), ("learning_rate", 0.005), ("seconds", 10.0)):
        parser.add_argument(f"--{name}", type=float, default=value)
    parser.add_argument("--compile", type=int, default=0, help="1: through torch.compile")
    asked = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(asked.threads)
    training = Training(asked)
    of_model = {"version": torch.__version__, "parameters": sum(p.numel() for p in training.model.parameters())}
    for _ in sys.stdin:
        print(json.dumps({"tokens_per_second": training.rate(asked.seconds), **of_model}), flush=True)


if __name__ == "__main__":
    main()
