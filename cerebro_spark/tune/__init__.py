"""What users touch: spaces and searches. Importing it loads neither Spark nor hyperopt."""
