package history

// Encode returns what a file with these records holds.
func Encode(records []Record) []byte {
	b := header()
	for i := range records {
		b = records[i].append(b)
	}
	return b
}

// Decode reads what Encode returned, or a file held, and says how many records cannot be read and are passed over.
func Decode(text []byte) (records []Record, damaged int, err error) {
	records, damaged, _, err = parse(text)
	return records, damaged, err
}
