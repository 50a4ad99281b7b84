"""What only benches, docs and tests use: the product does not import this package."""
