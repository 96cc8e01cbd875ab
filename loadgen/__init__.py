"""loadgen: load generation and chaos testbed for Kubernetes connection tracking.

The map, a sentence a room:

core        the nouns and every decision: pacing, statistics, thresholds, verdicts, Cilium's rules, glibc's resolver
native      the C extension: table walk and fill, the connection storm and its server, the reader of printed tables
kernel      one kernel interface a file: bpf, namespaces, links, nftables, nf_conntrack, mounts, processes, probes
drivers     make operations: storm (TCP), churn (sandboxes), dns (lookups)
probes      look: the node's tables, counters and agent
faults      make the node ill: fill the CT table, drop the racing query
lab         the embedded testbed: topology, agent model, CNI plugin, kubelet model, DNS servers, workers
scenarios   the built-in experiments and the loader of scenario files
engine      the interpreter of phases: the only loop
store       the run directory
experiment  variants and repeats, one run after the other
analysis    from a run directory to results and reports, with no testbed
diagnose    readers of the files of an incident, one a kind; what they mean is decided in core.hypotheses
report      terminal, HTML, JUnit
cli         the only argument parsing, printing and exit
"""

__version__ = "0.1.0"
