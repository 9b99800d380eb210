"""Sentence embedding with a BERT-style model, split over the workers of a session.

The modules, from the ground up: ``settings`` reads what a model's folder says
about it, ``weights`` reads one rank's slices, ``layout`` says where the sentences
of a batch stand, ``numerics`` and ``gpu_numerics`` have the functions that numpy
and cupy lack, one of which ``arithmetic`` chooses, ``clocks`` measures, and
``bert`` is one rank's share of the forward pass and knows neither Disco nor MPI.
``transformer`` offers that share to Disco's workers, ``sessions`` finds workers on
the right devices, ``embedder`` drives them from the client, ``tokens`` makes
batches and ``report`` prints. ``plain`` and ``parallel_mpi`` are the two
yardsticks: the same model in one process, and on MPI ranks without Disco.
"""
