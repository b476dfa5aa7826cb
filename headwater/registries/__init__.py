"""Four implementations of SEAM 2: listing (directory V1), manifest (V2), compat (V2 over V1), metastore."""
