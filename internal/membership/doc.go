// Package membership detects which nodes of a cluster are gone, by gossip: hashicorp/memberlist over the port that the nodes have. What it says is
// a hint, which its readers confirm; who is a member is said by the replicated state alone.
//
//	list, err := membership.Open(membership.Config{Name: "n1", Key: key, Packets: udp, Streams: m.Listener(mux.ProtocolGossip), ...})
//	for name, member := range list.Members() { ... }
//	list.Leave()
//	err = list.Close()
//
// Nodes are addressed by their names. Where a name is, the replicated state says (Config.Peers), so that gossip's own idea of addresses is not used:
// a node that moves needs no agreement about its old address.
package membership
