package pipeline

import "context"

// send puts v into c, unless ctx ends first.
func send[T any](ctx context.Context, c chan<- T, v T) error {
	select {
	case c <- v:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// receive takes from c, unless ctx ends first. What a closed channel gives is the zero value.
func receive[T any](ctx context.Context, c <-chan T) (v T, err error) {
	select {
	case v = <-c:
		return v, nil
	case <-ctx.Done():
		return v, context.Cause(ctx)
	}
}
