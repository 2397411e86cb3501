package device

// Embeddings look rows up in tables.
type Embeddings interface {
	// Embed sets out (B,T,D) = tokens[ids (B,T)] (V,D) + positions[t] (>=T,D); positions may be absent.
	Embed(out, tokens, positions, ids Mem, b, t, d int)
	// EmbedBackward sets dtokens (V,D) += scatter(dout (B,T,D)) and dpositions (>=T,D) += sum over samples of dout,
	// unless that is absent. Additions happen in the order of the rows.
	EmbedBackward(dtokens, dpositions, dout, ids Mem, b, t, d int)
}
