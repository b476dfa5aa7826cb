"""What may be ingested: formats of change data, each a function from what a caller gives to rows with their kinds."""
