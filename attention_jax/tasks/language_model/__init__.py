"""Language models: their data, their loss, and how they are measured."""
