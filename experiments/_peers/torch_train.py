"""Training in PyTorch, to be measured beside the project's own: a JSON object for every line of standard input.

    echo | python torch_train.py --batches=FILE.npz --model=transformer --width=256 --layers=3 --heads=8

FILE.npz has the padded ids of sentence pairs, `source` and `target` [pairs, length] with 0 as padding, and the sizes of
both vocabularies, `vocabularies`; a language model reads `target` alone. The step is Adam's on the mean cross entropy
of target tokens, with dropout and gradients clipped at norm 1. Rates are target tokens a second: the median of the
calls, of --steps steps each, of so many seconds, which go on where those of the line before ended.
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

    def __init__(self, vocabularies, width, layers, rate, heads, feed_forward, sites):
        super().__init__()
        self.embed_source, self.embed_target = (nn.Embedding(size, width) for size in vocabularies)
        self.layers = nn.Transformer(width, heads, layers, layers, feed_forward, rate, batch_first=True)
        self.drop = nn.Dropout(rate) if "embeddings" in sites else nn.Identity()
        for layer in (*self.layers.encoder.layers, *self.layers.decoder.layers):
            for name, part in layer.named_children():
                if isinstance(part, nn.MultiheadAttention) and "attention" not in sites:
                    part.dropout = 0.0
                elif isinstance(part, nn.Dropout) and ("hidden" if name == "dropout" else "residual") not in sites:
                    setattr(layer, name, nn.Identity())
        self.logits = nn.Linear(width, vocabularies[1])
        self.register_buffer("positions", sinusoids(256, width))

    def forward(self, source, inputs):
        is_padding, length = source == PADDING, inputs.shape[1]
        future = torch.ones(length, length, dtype=torch.bool, device=inputs.device).triu(1)
        read, write = self.placed(self.embed_source(source)), self.placed(self.embed_target(inputs))
        masks = {"src_key_padding_mask": is_padding, "memory_key_padding_mask": is_padding}
        return self.logits(self.layers(read, write, tgt_mask=future, tgt_is_causal=True, **masks))

    def placed(self, x):
        return self.drop(x * math.sqrt(x.shape[-1]) + self.positions[: x.shape[1]])


def sinusoids(length, width):
    angles = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
    return torch.stack([angles.sin(), angles.cos()], -1).reshape(length, width)


class Layer(nn.Module):
    """Causal attention and two dense layers, each after a norm and added to what it reads."""

    def __init__(self, width, rate, heads, feed_forward):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.project, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.feed = nn.Sequential(nn.Linear(width, feed_forward), nn.GELU("tanh"), nn.Linear(feed_forward, width))
        self.drop, self.heads = nn.Dropout(rate), heads

    def forward(self, x):
        shape = (*x.shape[:-1], 3, self.heads, -1)
        query, key, value = self.project(self.norms[0](x)).view(shape).permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.drop(self.out(found.transpose(1, 2).reshape(x.shape)))
        return x + self.drop(self.feed(self.norms[1](x)))


class Writer(nn.Module):
    """A language model that scores with the embeddings that it reads with, and learns those of positions."""

    def __init__(self, vocabularies, width, layers, rate, heads, feed_forward, **unused):
        super().__init__()
        self.embed, self.positions = nn.Embedding(vocabularies[1], width), nn.Embedding(2048, width)
        self.layers = nn.Sequential(*(Layer(width, rate, heads, feed_forward) for _ in range(layers)))
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(rate)
        nn.init.normal_(self.embed.weight, std=width**-0.5)

    def forward(self, source, inputs):
        del source
        x = self.drop(self.embed(inputs) + self.positions.weight[: inputs.shape[1]])
        return functional.linear(self.norm(self.layers(x)), self.embed.weight)


MODELS = {"bahdanau": Bahdanau, "transformer": Transformer, "language_model": Writer}


class Training:
    """A model, and the batches that it has not read."""

    def __init__(self, asked):
        data = np.load(asked.batches)
        target = torch.from_numpy(data["target"].astype(np.int64))
        source = torch.from_numpy(data["source"].astype(np.int64)) if "source" in data else target
        self.words = (target != PADDING).sum(1)
        self.source, self.target = source.to(asked.device), target.to(asked.device)
        sizes = {name: getattr(asked, name) for name in ("width", "layers", "rate", "heads", "feed_forward", "sites")}
        self.model = MODELS[asked.model](tuple(data["vocabularies"].tolist()), **sizes).to(asked.device)
        self.loss = torch.compile(self.loss_of) if asked.compile else self.loss_of
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=asked.learning_rate, fused=True)
        self.batch, self.steps, self.batches = asked.batch, asked.steps, iter(())
        self.mixed = torch.autocast(asked.device, torch.bfloat16, enabled=asked.dtype == "bfloat16")
        self.wait = torch.cuda.synchronize if asked.device == "cuda" else lambda: None

    def loss_of(self, source, target):
        """The mean cross entropy of target tokens."""
        inputs = torch.cat([torch.full_like(target[:, :1], BEGIN), target[:, :-1]], dim=1)
        logits = self.model(source, inputs)
        return functional.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PADDING)

    def rate(self, seconds):
        """The median rate of the calls of so many seconds, of full batches alone."""
        rates: list[float] = []
        until = time.perf_counter() + seconds
        while len(rates) < 5 or time.perf_counter() < until:
            each = [self.next_rows() for _ in range(self.steps)]
            started = time.perf_counter()
            for rows in each:
                self.step(self.source[rows], self.target[rows])
            self.wait()
            rates.append(sum(int(self.words[rows].sum()) for rows in each) / (time.perf_counter() - started))
        return statistics.median(rates)

    def next_rows(self):
        """The rows of the next full batch; each epoch draws its order anew."""
        rows = next(self.batches, ())
        while len(rows) < self.batch:
            self.batches = iter(torch.randperm(len(self.target)).split(self.batch))
            rows = next(self.batches)
        return rows

    def step(self, source, target):
        """One step of Adam."""
        with self.mixed:
            loss = self.loss(source, target)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()


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
        ("steps", 1),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, value in (("rate", 0.1), ("learning_rate", 0.005), ("seconds", 10.0)):
        parser.add_argument(f"--{name}", type=float, default=value)
    parser.add_argument(
        "--sites", default="attention,hidden,residual", help="of a Transformer's dropout: and embeddings"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="bfloat16: by autocast")
    parser.add_argument("--compile", type=int, default=0, help="1: through torch.compile")
    asked = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(asked.threads)
    torch.set_float32_matmul_precision("high" if asked.device == "cuda" else "highest")
    training = Training(asked)
    of_model = {"version": torch.__version__, "parameters": sum(p.numel() for p in training.model.parameters())}
    for _ in sys.stdin:
        print(json.dumps({"tokens_per_second": training.rate(asked.seconds), **of_model}), flush=True)


if __name__ == "__main__":
    main()
