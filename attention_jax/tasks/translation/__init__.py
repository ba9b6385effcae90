"""Translation: programs over sentences, what is measured of them, and what is written down."""
