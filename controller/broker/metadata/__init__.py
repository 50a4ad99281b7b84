"""What the controller has told this broker of all partitions, and the answers that are made of it."""
