// Package tokenizer turns text into token ids and back: by bytes, or as a tokenizer.json in Hugging Face's format says,
// whose models are BPE (Sennrich et al. 2016), also of bytes as GPT-2 has it (Radford et al. 2019), WordPiece as BERT has
// it (Devlin et al. 2019), and Unigram (Kudo 2018).
//
// A tokenizer works in the steps of the file: added tokens are cut out, the rest is normalized, cut into words, and
// each word is looked up in pieces:
//
//	t, err := tokenizer.Open("tokenizer.json")
//	encoder := t.NewEncoder() // one for each goroutine: it remembers words
//	ids, err := encoder.Append(nil, "some text")
//	text := t.Decode(ids)
//
// A file that asks for anything unknown is refused, since what is left out silently would give other ids. There is one deviation:
// where the file has no token for unknown text, that text is an error, and not dropped.
package tokenizer
