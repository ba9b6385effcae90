"""Speed, measured side by side: the project's programs and their peers in turn, a value a round."""
