"""`strideweave bench`: StrideWeave beside its peers and beside the raw limit of the machine, in one run.

Nothing is imported here: a worker process comes through, and decides itself what it imports.
"""
