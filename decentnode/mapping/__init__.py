"""Who runs where: rank to machine, and what torchrun and Slurm say."""
