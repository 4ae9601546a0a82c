"""Who is in the raw data: how few points single out a person."""
