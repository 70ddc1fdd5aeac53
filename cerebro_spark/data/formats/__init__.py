"""How rows lie in files: Parquet by Arrow, and what Petastorm adds to it."""
