"""Simulations at the edge: fleet files, calibration from runs, processes, results on disk. See core/simulate."""
