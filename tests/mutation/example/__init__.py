"""What the mutation tool is tested on: code whose mutants are known to be noticed, or not."""
