# Writes this node's CNI configuration and keeps the routes to the other nodes' pods, of each address family.
file=/etc/cni/net.d/10-plain.conflist
config() { # this node's pod ranges
    ranges='' routes=''
    for cidr in "$@"; do
        case $cidr in *:*) all=::/0 ;; *) all=0.0.0.0/0 ;; esac
        ranges="$ranges${ranges:+, }[{\"subnet\": \"$cidr\"}]"
        routes="$routes${routes:+, }{\"dst\": \"$all\"}"
    done
    cat <<E
{"cniVersion": "0.4.0", "name": "plain", "plugins": [
  {"type": "ptp", "ipMasq": false, "mtu": 1500, "ipam": {"type": "host-local", "dataDir": "/run/cni-ipam",
    "ranges": [$ranges], "routes": [$routes]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
E
}
route() { # pod range, the node's addresses: through the one of the range's family
    cidr=$1
    shift
    for address in "$@"; do
        case $cidr,$address in
        *:*,*:*) ip -6 route replace "$cidr" via "$address" ;;
        *:* | *,*:*) ;;
        *) ip route replace "$cidr" via "$address" ;;
        esac
    done
}
# kind names the control plane's own address here, so that nodes need no kube-proxy to become Ready.
if [ -n "${CONTROL_PLANE_ENDPOINT:-}" ]; then
    export KUBERNETES_SERVICE_HOST="${CONTROL_PLANE_ENDPOINT%:*}" KUBERNETES_SERVICE_PORT="${CONTROL_PLANE_ENDPOINT##*:}"
fi
nodes='{range .items[*]}{.metadata.name}|{.spec.podCIDRs[*]}|{.status.addresses[?(@.type=="InternalIP")].address}{"\n"}{end}'
while :; do
    kubectl get nodes -o "jsonpath=$nodes" |
        while IFS='|' read -r name cidrs addresses; do
            [ -n "$cidrs" ] || continue
            if [ "$name" = "$NODE" ]; then
                # shellcheck disable=SC2086 # a list
                [ "$(cat "$file" 2>/dev/null)" = "$(config $cidrs)" ] || config $cidrs >"$file"
            else
                # shellcheck disable=SC2086
                for cidr in $cidrs; do route "$cidr" $addresses; done
            fi
        done
    # Nodes come in the first minute; later each look costs half a second of CPU on a machine that measures.
    looks=$((${looks:-0} + 1))
    if [ "$looks" -lt 45 ]; then sleep 2; else sleep 30; fi
done
