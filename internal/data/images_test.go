package data

import (
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// idxFile is an IDX file of bytes.
func idxFile(elements []byte, sizes ...int) string {
	out := []byte{0, 0, 8, byte(len(sizes))}
	for _, n := range sizes {
		out = append(out, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	}
	return string(append(out, elements...))
}

// TestIDXImages: pixels are scaled, less the mean, over the deviation; channels come one after the other.
func TestIDXImages(t *testing.T) {
	dir := corpus(t, map[string]string{
		"images": idxFile([]byte{0, 255, 51, 102, 1, 2, 3, 4}, 2, 2, 2), "labels": idxFile([]byte{7, 1}, 2),
	})
	s := open(t, Config{
		Task: Images, Files: []string{dir}, Validation: []string{dir}, Format: "idx",
		Image: Image{1, 2, 2}, Mean: []float64{0.2}, Std: []float64{0.5}, ModelClasses: 10,
	})
	b := everything(t, s)
	if !slices.Equal(b.Targets, []int32{7, 1}) || len(s.Labels) != 8 || s.sequence != 1 {
		t.Error(b.Targets, s.Labels)
	}
	for i, want := range []float64{-0.4, 1.6, 0, 0.4} {
		if got := float64(b.Pixels[i]); got < want-1e-6 || got > want+1e-6 {
			t.Errorf("pixel %d is %v, want %v", i, got, want)
		}
	}
	color := corpus(t, map[string]string{"images": idxFile([]byte{1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 15, 16}, 2, 1, 2, 3), "labels": idxFile([]byte{0, 1}, 2)})
	b = everything(t, open(t, Config{Task: Images, Files: []string{color}, Validation: []string{color}, Format: "idx", Std: []float64{1. / 255, 1. / 255, 1. / 255}}))
	if got := fmt.Sprintf("%.0f", b.Pixels); got != "[1 4 2 5 3 6 11 14 12 15 13 16]" {
		t.Error(got)
	}
}

// TestImageFolders: the class is the directory; images are scaled to cover the shape, and their middle is cut out.
func TestImageFolders(t *testing.T) {
	dir := t.TempDir()
	paint := func(name string, w, h int, at func(x, y int) color.Color) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		file, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		m := image.NewNRGBA(image.Rect(0, 0, w, h))
		for y := range h {
			for x := range w {
				m.Set(x, y, at(x, y))
			}
		}
		if strings.HasSuffix(name, ".png") {
			err = png.Encode(file, m)
		} else {
			err = jpeg.Encode(file, m, &jpeg.Options{Quality: 100})
		}
		if err := errors.Join(err, file.Close()); err != nil {
			t.Fatal(err)
		}
	}
	red := color.NRGBA{255, 0, 0, 255}
	paint("cat/a.png", 8, 4, func(x, _ int) color.Color { // black at the sides, which are cut off
		if x < 2 || x >= 6 {
			return color.Black
		}
		return red
	})
	paint("dog/b.jpg", 6, 6, func(int, int) color.Color { return color.White })
	paint("dog/c.png", 4, 4, func(int, int) color.Color { return color.NRGBA{255, 255, 255, 0} })
	s := open(t, Config{Task: Images, Files: []string{dir}, Validation: []string{dir}, Format: "images", Image: Image{3, 4, 4}, ModelClasses: 2})
	b := everything(t, s)
	if fmt.Sprint(s.Labels, b.Targets) != "[cat dog] [0 1 1]" {
		t.Error(s.Labels, b.Targets)
	}
	for i, v := range b.Pixels {
		want := float32(0)
		if i < 16 || i >= 48 && i < 96 { // the red of the first, all of the second; the third is transparent
			want = 1
		}
		if v < want-0.02 || v > want+0.02 {
			t.Fatalf("value %d is %v, want %v", i, v, want)
		}
	}
	one := make([]float32, 48)
	if err := ReadImage(filepath.Join(dir, "cat/a.png"), Config{Image: Image{3, 4, 4}, Mean: []float64{0.5}, Std: []float64{0.5}}, one); err != nil {
		t.Fatal(err)
	}
	for i, v := range one {
		if want := 2*b.Pixels[i] - 1; v < want-1e-6 || v > want+1e-6 {
			t.Fatalf("value %d of a file alone is %v, want %v", i, v, want)
		}
	}
	grey := everything(t, open(t, Config{Task: Images, Files: []string{dir}, Validation: []string{dir}, Format: "images", Image: Image{1, 4, 4}}))
	if v := grey.Pixels[0]; v < 0.29 || v > 0.31 { // ITU-R BT.601
		t.Errorf("red is %v of white", v)
	}
}
