"""The embedded testbed: a node, its pods and servers as network namespaces of this machine.

Real: the kernel, the CT tables and their walks, nf_conntrack and nftables, every packet, the CNI plugin. Modelled:
the Cilium agent (`agent/`), which takes its locks and permits in Cilium's order, and the kubelet (`kubelet`), which
calls the plugin (`cni`) with the limits and retries of a real one. `testbed` puts one variant on fresh namespaces and
processes; `state` knows where they are and how what a killed run left is removed.
"""
