package device

import (
	"math/bits"
	"testing"
)

// The known answers of Philox4x32-10 for a counter and a key of zeros.
func TestDrawsArePhilox(t *testing.T) {
	if got, want := Draws(0, 0), [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}; got != want {
		t.Errorf("the first draws of key 0 are %x, want %x", got, want)
	}
}

func TestDrawsDependOnEveryBitOfKeyAndBlock(t *testing.T) {
	base := Draws(0, 0)
	for i := range 64 {
		for what, draws := range map[string][4]uint32{"key": Draws(1<<i, 0), "block": Draws(0, 1<<i)} {
			ones := 0
			for j := range draws {
				ones += bits.OnesCount32(draws[j] ^ base[j])
			}
			if ones < 36 || ones > 92 { // of 128; half, within five deviations of 5.7
				t.Errorf("bit %d of the %s changes %d bits of 128", i, what, ones)
			}
		}
	}
}
