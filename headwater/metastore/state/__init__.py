"""States of a metastore: the index of folded slots, checkpoints, and reads at any slot."""
