"""Pure functions of attention: jax only, no parameters of their own, no state, no I/O."""
