"""Which machine runs which node: rank to machine, and the environments of torchrun and Slurm."""
