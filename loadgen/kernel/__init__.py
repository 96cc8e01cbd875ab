"""The edge to Linux, one kernel interface a module. Nothing here decides anything.

What the kernel refuses is an OSError or, with its words, a HarnessError.

netns    network namespaces and threads inside them     links    interfaces, addresses, routes (rtnetlink)
mounts   private mounts, tmpfs, bpffs                   process  children that die with their parent
bpf      CT tables and the tc programs that fill them   nft      nftables
nfct     netfilter's own conntrack counters             support  what this machine can do
unixhttp HTTP over a unix socket
"""
