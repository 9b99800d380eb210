"""Sentence embedding with a BERT-style model, split over the workers of a session.

The modules, from the ground up: ``settings`` reads what a model's folder says
about it, ``weights`` reads one rank's slices, ``numerics`` has the functions
that numpy lacks, ``bert`` is one rank's share of the forward pass and knows
neither Disco nor MPI. ``transformer`` offers that share to Disco's workers,
``embedder`` drives it from the client, ``tokens`` makes batches and ``report``
prints. ``plain`` and ``parallel_mpi`` are the two yardsticks: the same model in
one process, and on MPI ranks without Disco.
"""
