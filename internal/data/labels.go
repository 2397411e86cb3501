package data

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/avgpipe/avgpipe/internal/data/table"
	"github.com/avgpipe/avgpipe/internal/nearest"
)

// maxClasses bounds the different labels of a file: more are a column that is no class.
const maxClasses = 1 << 16

// labels are those of the samples of one file, as numbers: as they come, and once they are classified the numbers of their classes.
type labels struct {
	of      []int32 // by sample
	path    string
	names   []string // by number
	lines   []int    // where each comes first; 0: the file's name tells
	numbers map[string]int32
}

func (l *labels) add(name string, line int) {
	n, ok := l.numbers[name]
	if !ok {
		if n = int32(len(l.names)); n == 0 { //nolint:gosec // At most maxClasses.
			l.numbers = map[string]int32{}
		}
		l.numbers[name] = n
		l.names, l.lines = append(l.names, name), append(l.lines, line)
	}
	l.of = append(l.of, n)
}

// classify makes classes of the labels, and names them.
func (o *opener) classify(found []*labels) ([]string, error) {
	classes, err := o.classes(found)
	if err != nil {
		return nil, err
	}
	for _, l := range found {
		classOf, err := o.translate(classes, l)
		if err != nil {
			return nil, err
		}
		for k, n := range l.of {
			l.of[k] = classOf[n]
		}
	}
	return classes, nil
}

// classes are the names of the classes, by number: those of the job, else those of the data. Where all labels are whole
// numbers from 0 on, they are the numbers of the classes.
func (o *opener) classes(found []*labels) ([]string, error) {
	all := map[string]bool{}
	for _, t := range found {
		for _, name := range t.names {
			all[name] = true
		}
	}
	names := slices.Sorted(maps.Keys(all))
	classes := o.Labels
	if most, numbers := largestOf(names); numbers && len(o.Labels) == 0 {
		classes = nil
		for i := range most + 1 {
			classes = append(classes, strconv.Itoa(i))
		}
	} else if len(o.Labels) == 0 {
		classes = names
	}
	if o.ModelClasses > 0 && len(classes) > o.ModelClasses {
		key := "data.columns.label"
		if o.Task == Images {
			key = "data.files"
		}
		if len(o.Labels) > 0 {
			key = "data.labels"
		}
		return nil, &Error{Key: key, Err: fmt.Errorf("there are %d classes (%s), the model has %d; set its number of labels to %d",
			len(classes), some(classes), o.ModelClasses, len(classes))}
	}
	if len(classes) < 2 {
		return nil, &Error{Key: "data.files", Err: fmt.Errorf("all samples are of one class, %s; there are at least 2", some(classes))}
	}
	return classes, nil
}

func (o *opener) translate(classes []string, t *labels) ([]int32, error) {
	out := make([]int32, len(t.names))
	_, numbers := largestOf(t.names)
	_, numbered := largestOf(classes)
	for i, name := range t.names {
		class := slices.Index(classes, name)
		if class < 0 && numbers && !numbered { // the job names the classes whose numbers the data have
			class, _ = strconv.Atoi(name)
		}
		if class < 0 || class >= len(classes) {
			return nil, &Error{Key: "data.labels", Nearest: nearest.Word(name, classes), Err: &table.Error{
				Path: t.path, Line: t.lines[i], Err: fmt.Errorf("the label %q is none of the %d classes: %s", name, len(classes), some(classes)),
			}}
		}
		out[i] = int32(class) //nolint:gosec // At most maxClasses.
	}
	return out, nil
}

// largestOf is the largest of labels, if all are whole numbers from 0 to the most classes.
func largestOf(names []string) (largest int, ok bool) {
	for _, name := range names {
		n, err := strconv.Atoi(name)
		if err != nil || n < 0 || n >= maxClasses || strconv.Itoa(n) != name {
			return 0, false
		}
		largest = max(largest, n)
	}
	return largest, len(names) > 0
}

func some(names []string) string {
	const most = 10
	if len(names) > most {
		return strings.Join(names[:most], ", ") + ", ..."
	}
	return strings.Join(names, ", ")
}
