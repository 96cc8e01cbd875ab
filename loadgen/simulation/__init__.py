"""Simulations at the edge: fleet files, calibration from runs, processes, results on disk. The model is core/simulate."""
