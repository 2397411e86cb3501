package main

import (
	"context"
	"errors"

	"github.com/avgpipe/avgpipe/bench/internal/report"
)

func measureDisk(context.Context, options) ([]report.Figure, error) {
	return nil, errors.New("not yet")
}
