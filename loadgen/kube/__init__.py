"""Real Kubernetes as a testbed: a kind cluster made here, or any cluster of a kubeconfig."""
