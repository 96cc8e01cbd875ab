"""The built-in experiments (`*.yaml`) and the loader that reads them and a user's own files alike."""
