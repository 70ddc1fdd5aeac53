"""The pure search algorithms: values in, values out. They see spaces and reports, nothing else."""
