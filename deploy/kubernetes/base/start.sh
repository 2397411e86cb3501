#!/usr/bin/env bash
# start.sh: makes a pod's volume that of a node of the cluster, before each start of its daemon. Pod 0 begins the cluster, unless another pod
# answers as a node of it: then it has lost its volume, and joins like the others once `avgpipectl nodes remove` has removed what it was.
set -euo pipefail
config=/run/avgpipe/avgpiped.yaml
sed "s/^\([a-z].*\)NODE/\1$POD/; s/SPACE/$SPACE/" /etc/avgpipe/avgpiped.yaml >$config
others=
i=0
while [ "$i" -lt 5 ]; do # five at most vote; one that is up is enough
	[ "avgpipe-$i" = "$POD" ] || others="$others avgpipe-$i.avgpipe-nodes.$SPACE.svc:7700"
	i=$((i + 1))
done
# shellcheck disable=SC2086 # addresses have no spaces
if [ "$POD" != avgpipe-0 ] || ! avgpiped init --config $config --authority /authority --others "$(echo $others | tr ' ' ,)"; then
	exec avgpiped join $others --config $config --authority /authority --wait 5m
fi
