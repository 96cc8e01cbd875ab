"""Days of a node, or of thousands, in seconds: a discrete-event model of conntrack tables, agent and kubelet.

    fleet.py     what a fleet file says: node types, workloads, settings, policies
    costs.py     what a walk costs on which machine, and how to read it out of a run of the lab
    flows.py     a table's entries over time, without looking at single connections
    events.py    the clock, the lock and the permits
    agent.py     creates, deletes and walks, as Cilium's agent does them
    kubelet.py   sandboxes with their time-outs, retries and give-ups
    gc.py        the periodic passes, and hours without news skipped in one step
    node.py      one node from its boot to the horizon
    draw.py      a node's own luck: rates, arrivals, offsets, from the fleet's seed
    outcome.py   what a node leaves behind, and policies side by side

Pure and seeded: the same fleet, seed and costs give the same outcome, node by node, in any order.
"""
