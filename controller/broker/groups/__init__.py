"""Consumer groups: members and generations, committed offsets, and the topic that keeps them."""
