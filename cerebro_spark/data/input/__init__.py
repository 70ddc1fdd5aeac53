"""What comes in: DataFrames, the columns asked for, and their cells as numbers, checked."""
