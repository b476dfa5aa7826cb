"""Records of a metastore: on-disk names, the records on disk, and the frozen values made of them."""
