"""Language models: what they are trained on, their loss, and what is measured of them."""
