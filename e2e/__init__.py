"""Whole runs on real clusters: `make e2e`."""
