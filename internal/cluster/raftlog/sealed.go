package raftlog

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// A sealed file: magic of 8 bytes, version, length of the head, head (JSON), body, and a CRC-32C of all that (docs/formats.md).
const sealedPrefix = 8 + 4 + 4

// sealFile returns the bytes of a sealed file.
func sealFile(magic string, version uint32, head, body []byte) []byte {
	data := append(make([]byte, 0, sealedPrefix+len(head)+len(body)+4), magic...)
	data = binary.LittleEndian.AppendUint32(data, version)
	data = binary.LittleEndian.AppendUint32(data, uint32(len(head)))
	data = append(append(data, head...), body...)
	return binary.LittleEndian.AppendUint32(data, crc32.Checksum(data, castagnoli))
}

// unsealFile checks the bytes of a sealed file and splits them. head and body share memory with data.
func unsealFile(magic string, version uint32, data []byte) (head, body []byte, err error) {
	if len(data) < sealedPrefix+4 {
		return nil, nil, fmt.Errorf("truncated: %d bytes, expected at least %d", len(data), sealedPrefix+4)
	}
	if string(data[:8]) != magic {
		return nil, nil, fmt.Errorf("starts with %q, expected %q", data[:8], magic)
	}
	if v := binary.LittleEndian.Uint32(data[8:]); v != version {
		return nil, nil, fmt.Errorf("version %d, this program reads %d", v, version)
	}
	whole, tail := data[:len(data)-4], data[len(data)-4:]
	if found, expected := crc32.Checksum(whole, castagnoli), binary.LittleEndian.Uint32(tail); found != expected {
		return nil, nil, fmt.Errorf("truncated or damaged: checksum is %08x, expected %08x", found, expected)
	}
	rest := whole[sealedPrefix:]
	length := binary.LittleEndian.Uint32(data[12:])
	if uint64(length) > uint64(len(rest)) {
		return nil, nil, fmt.Errorf("metadata claims %d bytes of %d", length, len(rest))
	}
	return rest[:length], rest[length:], nil
}
