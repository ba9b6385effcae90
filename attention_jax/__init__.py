"""attention_jax: attention from kernel regression to the Transformer, as pure functions and thin modules."""

from attention_jax import _jaxlib

_jaxlib.mend()
