package main

import (
	"context"

	"github.com/Shopify/toxiproxy/v2/toxics"
)

// toxic is a fault of the connections of a host, which go through proxies.
func toxic(of func(h *host) toxics.Toxic) apply {
	return func(_ context.Context, h *host) (func() error, error) {
		undo := h.proxies.Toxic(h.name, of(h))
		return func() error {
			undo()
			return nil
		}, nil
	}
}

func delay(h *host) toxics.Toxic {
	late := 5 + int64(h.draw(45)) // ms
	return &toxics.LatencyToxic{Latency: late, Jitter: late}
}

func slowClose(h *host) toxics.Toxic { return &toxics.SlowCloseToxic{Delay: 100 + int64(h.draw(1900))} }

func reset(*host) toxics.Toxic { return &toxics.ResetToxic{} }

func limitData(h *host) toxics.Toxic {
	return &toxics.LimitDataToxic{Bytes: 1 + int64(h.draw(256<<10))}
}

func swallow(*host) toxics.Toxic { return &toxics.TimeoutToxic{} }

func slice(*host) toxics.Toxic {
	return &toxics.SlicerToxic{AverageSize: 512, SizeVariation: 256, Delay: 20} // 20 us between two of them, 25 MB/s
}
