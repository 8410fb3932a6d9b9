package main

import (
	"math"
	"math/bits"
	"sync/atomic"
	"time"
)

// steps is how many buckets lie between a power of two and the next; below it there is one for every nanosecond.
const (
	stepBits = 7
	steps    = 1 << stepBits
	buckets  = (64 - stepBits + 1) * steps
)

// histogram is how often which duration was seen.
type histogram struct {
	counts [buckets]atomic.Uint64
}

func (h *histogram) record(duration time.Duration) {
	value := uint64(max(duration, 0))
	shift := max(bits.Len64(value)-stepBits-1, 0)
	h.counts[shift*steps+int(value>>shift)].Add(1)
}

// quantile is the value, in seconds, that this part of all values does not exceed; 0 without any.
func (h *histogram) quantile(part float64) float64 {
	var total, seen uint64
	for i := range h.counts {
		total += h.counts[i].Load()
	}
	rank := max(uint64(math.Ceil(float64(total)*part)), 1)
	for i := range h.counts {
		seen += h.counts[i].Load()
		if seen >= rank {
			shift := max(i/steps-1, 0)
			low := uint64(i-shift*steps) << shift
			return time.Duration(low + (uint64(1)<<shift-1)/2).Seconds()
		}
	}
	return 0
}
