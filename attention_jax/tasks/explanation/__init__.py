"""Is attention explanation? What source words a translator's words rest on, told in several ways and compared."""
