package cuda

import "fmt"

// Config says which graphics processor a device is on.
type Config struct {
	// Ordinal is the number of the processor, as the driver counts those that it shows to this process. Default 0.
	Ordinal int
	// Library is the driver's library. Default libcuda.so.1, which the loader finds.
	Library string
	// Libraries are directories with cuBLAS, before those where the loader looks. Without it our own kernels multiply, which are slower.
	Libraries []string
	// OwnProducts makes our own kernels multiply, whatever there is.
	OwnProducts bool
}

// Validate reports what is wrong with c. Zero values stand for defaults.
func (c Config) Validate() error {
	if c.Ordinal < 0 {
		return fmt.Errorf("cuda device: number %d, expected at least 0", c.Ordinal)
	}
	return nil
}
