"""The four registries (seam 2): listing (directory V1), manifest (V2), compat (V2 over V1), metastore."""
