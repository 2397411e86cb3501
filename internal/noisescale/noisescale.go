// Package noisescale estimates the scale of the noise in gradients while a job trains: the critical batch, with which training needs twice as many samples to a target as with small ones
// (McCandlish, Kaplan, Amodei and the OpenAI Dota Team, An Empirical Model of Large-Batch Training, 2018). It is arithmetic alone:
//
//	var m noisescale.Moments
//	m.Add(noisescale.Norms{Small: 4, SmallSquare: s, Big: 32, BigSquare: l}, step, horizon)
//	estimate, why := m.Estimate()
package noisescale

import (
	"fmt"
	"math"
)

// Norms are squared norms of two gradients at one place: of the mean over few samples, and of the mean over more.
type Norms struct {
	Small, Big             float64 // samples
	SmallSquare, BigSquare float64
}

// parts are unbiased estimates of the squared norm of the true gradient and of the trace of the covariance of one sample's gradient (appendix A.1):
//
//	|G|^2 = (B |G_B|^2 - b |G_b|^2) / (B - b)
//	S     = (|G_b|^2 - |G_B|^2) / (1/b - 1/B)
//
// Either can be negative by chance.
func (n Norms) parts() (signal, noise float64, ok bool) {
	if !(n.Small > 0 && n.Big > n.Small) {
		return 0, 0, false
	}
	signal = (n.Big*n.BigSquare - n.Small*n.SmallSquare) / (n.Big - n.Small)
	noise = (n.SmallSquare - n.BigSquare) / (1/n.Small - 1/n.Big)
	finite := func(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }
	return signal, noise, finite(signal*signal) && finite(noise*noise)
}

// Moments are sums over all measurements, of which older ones weigh less: what an estimate is made of, and what is kept with a job. The zero value is of none.
type Moments struct {
	Count   uint64  `json:"count"` // of measurements
	Step    uint64  `json:"step"`  // of the newest
	Weight  float64 `json:"weight"`
	Weight2 float64 `json:"weight_squared"`
	Signal  float64 `json:"signal"`
	Noise   float64 `json:"noise"`
	// Of squares and products, for the error of the estimate.
	Signal2 float64 `json:"signal_squared"`
	Noise2  float64 `json:"noise_squared"`
	Product float64 `json:"product"`
}

// Add takes a measurement in a step. What was before counts by 1 - 1/horizon of what it did. Norms that are not finite, or of no different numbers of samples, are left out.
func (m *Moments) Add(n Norms, step uint64, horizon float64) {
	signal, noise, ok := n.parts()
	if !ok {
		return
	}
	keep := 1 - 1/max(1, horizon)
	m.Count, m.Step = m.Count+1, max(m.Step, step)
	m.Weight, m.Weight2 = keep*m.Weight+1, keep*keep*m.Weight2+1
	m.Signal, m.Noise = keep*m.Signal+signal, keep*m.Noise+noise
	m.Signal2, m.Noise2, m.Product = keep*m.Signal2+signal*signal, keep*m.Noise2+noise*noise, keep*m.Product+signal*noise
}

// What an estimate needs.
const (
	LeastCount   = 8   // measurements
	LargestError = 0.5 // of the estimate, relative
)

// Estimate is the critical batch as it was measured.
type Estimate struct {
	Samples float64 // above 0
	Error   float64 // its standard error, relative
	Step    uint64  // of the newest measurement
}

// Estimate is the mean noise over the mean squared gradient (B_simple, equation 2.9); nil, with why, while that is not known: the number is never a guess, and never negative.
func (m *Moments) Estimate() (e *Estimate, why string) {
	if m.Count < LeastCount {
		return nil, fmt.Sprintf("%d of %d measurements were made", m.Count, LeastCount)
	}
	signal, noise := m.Signal/m.Weight, m.Noise/m.Weight
	effective := max(m.Weight*m.Weight/m.Weight2, 1+1e-9) // measurements that count fully
	spread := func(square, a, b float64) float64 { return (square/m.Weight - a*b) / (effective - 1) }
	errorOf := math.Sqrt(max(0, spread(m.Signal2, signal, signal)))
	switch {
	case signal <= 2*errorOf:
		return nil, fmt.Sprintf("after %d measurements the gradient cannot be told from its noise: the critical batch is far above the batch of a pipeline", m.Count)
	case noise <= 0:
		return nil, fmt.Sprintf("after %d measurements no noise is found: the critical batch is far below a micro-batch", m.Count)
	}
	// Of a ratio, to first order.
	relative := spread(m.Noise2, noise, noise)/(noise*noise) + spread(m.Signal2, signal, signal)/(signal*signal) - 2*spread(m.Product, noise, signal)/(noise*signal)
	e = &Estimate{Samples: noise / signal, Error: math.Sqrt(max(0, relative)), Step: m.Step}
	if e.Error > LargestError {
		return nil, fmt.Sprintf("%d measurements differ too much: the error is %.0f%% of the estimate", m.Count, 100*e.Error)
	}
	return e, ""
}
