package data

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"image"
	"image/color"
	_ "image/jpeg" // for image.Decode
	_ "image/png"  // for image.Decode
	"io"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/image/draw"

	"github.com/avgpipe/avgpipe/internal/data/idx"
	"github.com/avgpipe/avgpipe/job"
)

// pictures are images of one shape with a class each.
type pictures struct {
	shape  Image
	pixels []byte         // (n,C,H,W)
	labels                // (n)
	value  [][256]float32 // by channel: what a byte becomes
}

func (p *pictures) count() uint64 { return uint64(len(p.of)) }

func (p *pictures) fill(b Batch, j int, i uint64, _ visit) error {
	if b.Targets != nil {
		b.Targets[j] = p.of[i]
	}
	if b.Pixels == nil {
		return nil
	}
	n, plane := p.shape.Values(), p.shape.Height*p.shape.Width
	from, to := p.pixels[int(i)*n:][:n], b.Pixels[j*n:(j+1)*n] //nolint:gosec // A sample's number is below the count.
	for c := range p.shape.Channels {
		value := &p.value[c]
		out := to[c*plane : (c+1)*plane]
		for k, v := range from[c*plane : (c+1)*plane] {
			out[k] = value[v]
		}
	}
	return nil
}

// values are what bytes become in each channel: scaled to 0..1, less the mean, over the deviation.
func (o *opener) values(channels int) ([][256]float32, error) {
	for i, list := range [][]float64{o.Mean, o.Std} {
		if n := len(list); n > 1 && n != channels {
			return nil, &Error{Key: []string{"data.mean", "data.std"}[i], Err: fmt.Errorf(
				"%d numbers for images of %d channels; it has 1, or one for each", n, channels)}
		}
	}
	out := make([][256]float32, channels)
	for c := range out {
		mean, std := job.At(o.Mean, c), cmp.Or(job.At(o.Std, c), 1) // a deviation is above 0
		for b := range out[c] {
			out[c][b] = float32((float64(b)/255 - mean) / std)
		}
	}
	return out, nil
}

func (o *opener) openImages(ctx context.Context, s *Set) error {
	parts := slices.DeleteFunc([][]File{o.train, o.held}, func(part []File) bool { return len(part) == 0 })
	var read []*pictures
	var found []*labels
	for _, part := range parts {
		p, err := o.readImages(ctx, part)
		if err != nil {
			return err
		}
		p.path = part[0].Path
		read, found = append(read, p), append(found, &p.labels)
	}
	classes, err := o.classify(found)
	if err != nil {
		return err
	}
	if last := read[len(read)-1]; last.shape != read[0].shape {
		return &Error{Key: "data.validation", Err: fmt.Errorf("its images are %v, those to train on %v", last.shape, read[0].shape)}
	}
	s.Labels, s.image = classes, read[0].shape
	switch {
	case o.HoldAll:
		s.train, s.held = &pictures{shape: s.image}, read[0]
	case len(read) > 1:
		s.train, s.held = read[0], read[1]
	default:
		s.train, s.held, err = o.split(read[0])
	}
	return err
}

func (o *opener) readImages(ctx context.Context, files []File) (p *pictures, err error) {
	if o.Format == formatIDX {
		p, err = o.readIDX(files)
	} else {
		p, err = o.readFolder(ctx, files)
	}
	if err == nil {
		p.value, err = o.values(p.shape.Channels)
	}
	return p, err
}

// readIDX reads files of images and files of labels, which belong together in their order.
func (o *opener) readIDX(files []File) (*pictures, error) {
	var images, labels []idx.Data
	var imagePaths, labelPaths []string
	for _, f := range files {
		d, err := idx.Read(o.Access, f.Path, o.CapBytes-o.memory.Load())
		if err != nil {
			return nil, located(err)
		}
		if err := o.hold(f.Path, int64(len(d.Bytes))); err != nil {
			return nil, err
		}
		if len(d.Sizes) == 1 {
			labels, labelPaths = append(labels, d), append(labelPaths, f.Path)
		} else {
			images, imagePaths = append(images, d), append(imagePaths, f.Path)
		}
	}
	if len(images) != len(labels) {
		return nil, located(fmt.Errorf("%d files of images and %d of labels; each file of images has one of labels, in the same order by name", len(images), len(labels)))
	}
	p := &pictures{}
	for i, d := range images {
		if d.Sizes[0] != labels[i].Sizes[0] {
			return nil, located(fmt.Errorf("%s has %d images, and %s %d labels; the files do not belong together",
				imagePaths[i], d.Sizes[0], labelPaths[i], labels[i].Sizes[0]))
		}
		shape, err := o.shapeOf(d)
		if err != nil {
			return nil, located(fmt.Errorf("%s: %w", imagePaths[i], err))
		}
		if i > 0 && shape != p.shape {
			return nil, located(fmt.Errorf("%s: its images are %v, those of %s %v", imagePaths[i], shape, imagePaths[0], p.shape))
		}
		p.shape = shape
		p.pixels = append(p.pixels, planar(d, shape)...)
		for _, label := range labels[i].Bytes {
			p.add(strconv.Itoa(int(label)), 0)
		}
	}
	return p, nil
}

// shapeOf is the shape of the images of a file, (N,H,W) or (N,H,W,C), which must be the model's.
func (o *opener) shapeOf(d idx.Data) (Image, error) {
	var shape Image
	switch len(d.Sizes) {
	case 3:
		shape = Image{Channels: 1, Height: d.Sizes[1], Width: d.Sizes[2]}
	case 4:
		shape = Image{Channels: d.Sizes[3], Height: d.Sizes[1], Width: d.Sizes[2]}
	}
	if shape.Channels != 1 && shape.Channels != 3 {
		return shape, fmt.Errorf("its sizes are %v; images are (N,H,W), or (N,H,W,C) of 1 or 3 channels", d.Sizes)
	}
	if o.Image != (Image{}) && shape != o.Image {
		return shape, fmt.Errorf("its images are %v (channels, rows, columns), the model takes %v; change the model's config", shape, o.Image)
	}
	return shape, nil
}

// planar puts the channels of each image one after the other.
func planar(d idx.Data, shape Image) []byte {
	if shape.Channels == 1 {
		return d.Bytes
	}
	out := make([]byte, len(d.Bytes))
	n, plane := shape.Values(), shape.Height*shape.Width
	for at := 0; at < len(out); at += n {
		for k := range n {
			out[at+k%shape.Channels*plane+k/shape.Channels] = d.Bytes[at+k]
		}
	}
	return out
}

// maxDecoded bounds the pixels of an image file, and with it what decoding one costs.
const maxDecoded = 64 << 20

// readFolder reads image files; the directory of each is its class.
func (o *opener) readFolder(ctx context.Context, files []File) (*pictures, error) {
	if o.Image.Values() == 0 || o.Image.Channels != 1 && o.Image.Channels != 3 {
		return nil, fmt.Errorf("data: images are brought to the model's shape, which is %v; it has 1 or 3 channels", o.Image)
	}
	n := o.Image.Values()
	if err := o.hold(files[len(files)-1].Path, int64(len(files))*int64(n)); err != nil {
		return nil, err
	}
	p := &pictures{shape: o.Image, pixels: make([]byte, len(files)*n)}
	for _, f := range files {
		p.add(filepath.Base(filepath.Dir(f.Path)), 0)
	}
	return p, o.each(ctx, files, func(i int, f File) error {
		return o.readImage(f.Path, p.shape, p.pixels[i*n:(i+1)*n])
	})
}

func (o *opener) readImage(path string, shape Image, pixels []byte) error {
	file, err := o.Access.Open(path, 0)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // opened for reading: nothing is lost
	if err := decode(file, shape, pixels); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// decode reads an image and brings it to a shape: scaled so that it covers it, its middle cut out, on black where it is
// transparent. Pixels are (C,H,W).
func decode(file io.ReadSeeker, shape Image, pixels []byte) error {
	config, _, err := image.DecodeConfig(bufio.NewReader(file))
	switch {
	case errors.Is(err, image.ErrFormat):
		return errors.New("it is neither PNG nor JPEG; a pattern such as **/*.png names the images alone")
	case err != nil:
		return err
	case config.Width < 1 || config.Height < 1 || config.Width > maxDecoded/config.Height:
		return fmt.Errorf("it has %d x %d pixels; at most %d are read", config.Width, config.Height, maxDecoded)
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	source, _, err := image.Decode(bufio.NewReader(file))
	if err != nil {
		return err
	}
	target := image.NewRGBA(image.Rect(0, 0, shape.Width, shape.Height))
	draw.Draw(target, target.Rect, image.Black, image.Point{}, draw.Src)
	draw.BiLinear.Scale(target, target.Rect, source, middle(source.Bounds(), shape), draw.Over, nil)
	plane := shape.Height * shape.Width
	for k := range plane {
		at := target.Pix[4*k : 4*k+3]
		if shape.Channels == 1 {
			pixels[k] = color.GrayModel.Convert(color.RGBA{R: at[0], G: at[1], B: at[2], A: 0xff}).(color.Gray).Y //nolint:errcheck,forcetypeassert // What the model gives.
			continue
		}
		for c := range 3 {
			pixels[c*plane+k] = at[c]
		}
	}
	return nil
}

// middle is the largest part of an image in its middle that has the proportions of a shape.
func middle(b image.Rectangle, shape Image) image.Rectangle {
	w, h := b.Dx(), b.Dy()
	if w*shape.Height > h*shape.Width {
		w = max(h*shape.Width/shape.Height, 1)
	} else {
		h = max(w*shape.Height/shape.Width, 1)
	}
	at := image.Pt(b.Min.X+(b.Dx()-w)/2, b.Min.Y+(b.Dy()-h)/2)
	return image.Rectangle{Min: at, Max: at.Add(image.Pt(w, h))}
}

// ReadImage reads one PNG or JPEG file as Open reads those of a directory with this configuration: brought to the shape
// c.Image, its values less c.Mean over c.Std. pixels is (C,H,W).
func ReadImage(path string, c Config, pixels []float32) error {
	o := &opener{Config: c}
	value, err := o.values(c.Image.Channels)
	if err != nil {
		return err
	}
	p := pictures{shape: c.Image, pixels: make([]byte, c.Image.Values()), value: value}
	if len(pixels) != len(p.pixels) || len(pixels) == 0 {
		return fmt.Errorf("data: room for %d values; an image of %v has %d", len(pixels), c.Image, len(p.pixels))
	}
	if err := o.readImage(path, c.Image, p.pixels); err != nil {
		return err
	}
	return p.fill(Batch{Pixels: pixels}, 0, 0, visit{})
}
