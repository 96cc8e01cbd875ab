"""The Cilium agent model: one asyncio process with Cilium's REST paths on a unix socket.

config      what it is started with          api        paths, status codes, who has gone away
admission   the API limiters on the clock    endpoints  create, first regeneration, removal
ctgc        the CT tables' locks and walks; the GC loop
ipam        addresses                        plumbing   veth pairs and the datapath on them
metrics     Cilium's metric names            spans      stages of every create, delete and GC pass
restore     endpoints that outlive a restart

What is real: the tables, the walks over them, the queue at their locks, veths and programs. What is a model: the
order of the steps, which follows Cilium's (core/cilium.py names the sources). There is no compiler, no policy and no
NAT table; a GC delete of Cilium's also looks up the paired NAT entry (3-4 us each), which is not imitated.
"""
