package main

import (
	"fmt"
	"testing"
	"time"
)

func TestTmp(t *testing.T) {
	for range 3 {
		for _, s := range []shape{{2, 1, 64}, {1, 1, 64}} {
			b, err := batchTime(s, time.Second)
			fmt.Println(s, float64(b.Microseconds())/float64(s.criticalPath()), err)
		}
	}
}
