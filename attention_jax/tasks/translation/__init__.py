"""Translation: programs over sentences, their metrics, and the files that they write."""
