package tokenizer

import (
	"strconv"
	"strings"
)

// decoder is one step from tokens to text. The parts that the last one leaves are joined.
type decoder func(parts []string) []string

// each changes parts one by one.
func each(change func(i int, part string) string) decoder {
	return func(parts []string) []string {
		for i := range parts {
			parts[i] = change(i, parts[i])
		}
		return parts
	}
}

// fuse joins the parts, for the steps after it.
func fuse(parts []string) []string { return []string{strings.Join(parts, "")} }

// fromByteLevel undoes byteLevel. A character that stands for no byte stays what it is.
func fromByteLevel(parts []string) []string {
	var b strings.Builder
	for _, r := range strings.Join(parts, "") {
		if raw, ok := runeBytes[r]; ok {
			b.WriteByte(raw)
		} else {
			b.WriteRune(r)
		}
	}
	return []string{b.String()}
}

// fromBytes makes text of tokens <0xNN>; a run of them that is no UTF-8 becomes a replacement character each.
func fromBytes(parts []string) []string {
	var out []string
	var run []byte
	flush := func() {
		if text := string(run); text == valid(text) {
			out = append(out, text)
		} else {
			out = append(out, strings.Repeat("\uFFFD", len(run)))
		}
		run = nil
	}
	for _, p := range parts {
		if len(p) == 6 && strings.HasPrefix(p, "<0x") && p[5] == '>' {
			if b, err := strconv.ParseUint(p[3:5], 16, 8); err == nil {
				run = append(run, byte(b))
				continue
			}
		}
		if run != nil {
			flush()
		}
		out = append(out, p)
	}
	if run != nil {
		flush()
	}
	return out
}

// fromWordPiece joins tokens to words, and words with blanks.
func fromWordPiece(prefix string, cleanup bool) decoder {
	return each(func(i int, part string) string {
		if i > 0 {
			if rest, ok := strings.CutPrefix(part, prefix); ok && prefix != "" {
				part = rest
			} else {
				part = " " + part
			}
		}
		if cleanup {
			part = tidy.Replace(part)
		}
		return part
	})
}

// tidy removes the blank before what is written without one.
var tidy = strings.NewReplacer(" .", ".", " ?", "?", " !", "!", " ,", ",", " ' ", "'", " n't", "n't", " 'm", "'m",
	" do not", " don't", " 's", "'s", " 've", "'ve", " 're", "'re")

// fromMetaspace writes blanks as blanks, but for the one that was put before the text.
func fromMetaspace(mark string, prepended bool) decoder {
	return each(func(i int, part string) string {
		if rest, ok := strings.CutPrefix(part, mark); ok && i == 0 && prepended {
			part = rest
		}
		return strings.ReplaceAll(part, mark, " ")
	})
}

// strip removes so many of a character from both ends of each part.
func strip(content string, left, right int) decoder {
	return each(func(_ int, part string) string {
		for n := 0; n < left && strings.HasPrefix(part, content); n++ {
			part = part[len(content):]
		}
		for n := 0; n < right && strings.HasSuffix(part, content); n++ {
			part = part[:len(part)-len(content)]
		}
		return part
	})
}
