//go:build cuda && cgo && linux && amd64

package cuda

import (
	"bytes"
	"compress/gzip"
	"embed"
	"fmt"
	"io"
	"regexp"
	"strings"
)

// images are the kernels as `make kernels` compiled them: machine code for two kinds of processors, and PTX, which a driver compiles for its own.
// Before each stands a line with the digest of the sources.
//
//go:embed kernels/*.gz
var images embed.FS

// imagesFor names the images for processors whose capability has this major number, the best first. Machine code runs on later minor numbers too.
func imagesFor(major int) []string {
	if major == 8 || major == 9 {
		return []string{fmt.Sprintf("sm_%d0.cubin", major), "kernels.ptx"}
	}
	return []string{"kernels.ptx"}
}

// openImage decompresses an image, and says for people what it is.
func openImage(name string) (code, about string, err error) {
	packed, err := images.ReadFile("kernels/" + name + ".gz")
	if err != nil {
		return "", "", fmt.Errorf("the program lacks its kernels: %w", err)
	}
	unpacked, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return "", "", fmt.Errorf("decompress the kernels: %w", err)
	}
	all, err := io.ReadAll(unpacked)
	if err != nil {
		return "", "", fmt.Errorf("decompress the kernels: %w", err)
	}
	_, all, _ = bytes.Cut(all, []byte("\n"))
	about = "kernels compiled by the driver"
	if kind, ok := strings.CutSuffix(name, ".cubin"); ok {
		about = "kernels for " + kind
	}
	return string(all), about, nil
}

// kernelNames finds the names of kernels in PTX, and in machine code, where each is a section.
var kernelNames = regexp.MustCompile(`(?:\.entry |\x00\.text\.)(\w+)`)
