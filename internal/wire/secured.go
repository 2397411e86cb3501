package wire

import (
	"crypto/tls"
	"net"
)

// recordBytes is what a record of TLS holds.
const recordBytes = 16 << 10

// secured is a connection with TLS. Its records are as long as they can be, and a header shares that of its payload.
type secured struct {
	*tls.Conn
	first []byte // of a frame: its header and what of its payload fits into a record with it
}

// secure puts TLS over a connection, where there is any. The connection that it returns is to be closed, also after an error.
func secure(conn net.Conn, config func() (*tls.Config, error), role func(net.Conn, *tls.Config) *tls.Conn) (net.Conn, error) {
	if config == nil {
		return conn, nil
	}
	c, err := config()
	if err != nil {
		return conn, err
	}
	c = c.Clone()
	c.DynamicRecordSizingDisabled = true // else the first 128 KiB go by short ones
	return &secured{Conn: role(conn, c)}, nil
}

// writeFrame writes a header and a payload: crypto/tls makes a record, and a call of the kernel, of each Write and each 16 KiB of it.
func (s *secured) writeFrame(header, payload []byte) error {
	n := min(len(payload), recordBytes-len(header))
	s.first = append(append(s.first[:0], header...), payload[:n]...)
	_, err := s.Write(s.first)
	if err == nil && n < len(payload) {
		_, err = s.Write(payload[n:])
	}
	return err
}
