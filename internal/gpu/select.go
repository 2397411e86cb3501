package gpu

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ErrSelection is what a selection that does not fit the host is.
var ErrSelection = errors.New("the GPUs that are asked for cannot be used")

// Selection says which processors the daemon may use.
type Selection struct {
	// Wanted are "all", "none", or indices and UUIDs; an empty list is none. An index or a UUID of a divided processor means all its instances.
	// Nil: all.
	Wanted []string
	// Visible is the CUDA_VISIBLE_DEVICES of the daemon; nil where it is not set. What it hides cannot be used. Its numbers are those of nvidia-smi
	// (CUDA_DEVICE_ORDER=PCI_BUS_ID).
	Visible *string
	// LeastCapability is the major number of the compute capability that kernels need. What is known to have less cannot be used. 0: all can.
	LeastCapability int
}

// All reports whether the selection takes what there is.
func (s Selection) All() bool { return s.Wanted == nil || slices.Equal(s.Wanted, []string{"all"}) }

// None reports whether the selection takes nothing, whatever there is.
func (s Selection) None() bool {
	return s.Wanted != nil && len(s.Wanted) == 0 || slices.Equal(s.Wanted, []string{"none"})
}

// Of returns those of the found processors that are selected, in their order. One that is wanted and not there is an error.
func (s Selection) Of(found []GPU) ([]GPU, error) {
	if s.None() {
		return nil, nil
	}
	visible, err := s.visible(found)
	if err != nil || s.All() {
		return visible, err
	}
	chosen := map[string]string{} // the word that names each
	for _, want := range s.Wanted {
		means := func(g GPU) bool { return means(want, g) }
		switch {
		case want == "all" || want == "none":
			return nil, fmt.Errorf("%w: %s stands alone, for all of the list", ErrSelection, want)
		case !slices.ContainsFunc(found, means):
			return nil, fmt.Errorf("%w: there is no GPU %s; found: %s", ErrSelection, want, list(found))
		case slices.ContainsFunc(found, func(g GPU) bool { return means(g) && s.tooOld(g) }):
			return nil, fmt.Errorf("%w: %s", ErrSelection, strings.Join(s.old(found), "; "))
		case !slices.ContainsFunc(visible, means):
			return nil, fmt.Errorf("%w: CUDA_VISIBLE_DEVICES=%s hides GPU %s; change one of the two", ErrSelection, *s.Visible, want)
		}
		for _, g := range visible {
			switch {
			case !means(g):
			case chosen[g.UUID] != "":
				return nil, fmt.Errorf("%w: %v is named twice, as %s and as %s; name it once", ErrSelection, g, chosen[g.UUID], want)
			default:
				chosen[g.UUID] = want
			}
		}
	}
	return those(visible, func(g GPU) bool { return chosen[g.UUID] != "" }), nil
}

// Hides says which of the found processors no job can use, since CUDA_VISIBLE_DEVICES hides them or kernels do not run there; "" where there is none, or
// Of refuses the variable.
func (s Selection) Hides(found []GPU) string {
	shown, err := s.shown(found)
	if err != nil {
		return ""
	}
	why := s.old(found)
	hidden := those(found, func(g GPU) bool { return !slices.ContainsFunc(shown, func(v GPU) bool { return v.UUID == g.UUID }) })
	if len(hidden) > 0 {
		why = append(why, fmt.Sprintf("CUDA_VISIBLE_DEVICES=%s hides %d of the %d GPUs of this host: %s", *s.Visible, len(hidden), len(found), list(hidden)))
	}
	return strings.Join(why, "; ")
}

// old says of each processor that kernels do not run on why not.
func (s Selection) old(found []GPU) (why []string) {
	for _, g := range found {
		if s.tooOld(g) {
			why = append(why, fmt.Sprintf("GPU %d (%s): compute capability %s, the kernels need %d.0", g.Index, g.Name, g.ComputeCapability, s.LeastCapability))
		}
	}
	return why
}

func (s Selection) tooOld(g GPU) bool {
	number, _, _ := strings.Cut(g.ComputeCapability, ".")
	major, err := strconv.Atoi(number)
	return err == nil && major < s.LeastCapability
}

// visible are those that jobs can use.
func (s Selection) visible(found []GPU) ([]GPU, error) {
	shown, err := s.shown(found)
	return those(shown, func(g GPU) bool { return !s.tooOld(g) }), err
}

// means reports whether a word of a configuration names a processor.
func means(word string, g GPU) bool {
	return word != "" && (word == g.UUID || word == g.Parent || word == strconv.Itoa(g.Index))
}

// shown are those that CUDA_VISIBLE_DEVICES shows. As for CUDA, a UUID may be cut short where one processor alone has that beginning, and what follows
// a name of nothing is hidden.
func (s Selection) shown(found []GPU) ([]GPU, error) {
	if s.Visible == nil {
		return slices.Clone(found), nil
	}
	shown := map[string]bool{}
	for word := range strings.SplitSeq(*s.Visible, ",") {
		word = strings.TrimSpace(word)
		named, before := those(found, func(g GPU) bool { return means(word, g) }), len(shown)
		if len(named) == 0 && (strings.HasPrefix(word, "GPU-") || strings.HasPrefix(word, "MIG-")) {
			named = those(found, func(g GPU) bool { return strings.HasPrefix(g.UUID, word) })
			if len(named) > 1 {
				return nil, fmt.Errorf("%w: %s in CUDA_VISIBLE_DEVICES=%s begins the UUIDs of %d GPUs: %s; write more of the one that is meant",
					ErrSelection, word, *s.Visible, len(named), list(named))
			}
		}
		for _, g := range named {
			shown[g.UUID] = true
		}
		if len(shown) == before {
			break
		}
	}
	return those(found, func(g GPU) bool { return shown[g.UUID] }), nil
}

// those are the processors that are meant.
func those(all []GPU, meant func(GPU) bool) []GPU {
	return slices.DeleteFunc(slices.Clone(all), func(g GPU) bool { return !meant(g) })
}

// list names processors for a message.
func list(all []GPU) string {
	if len(all) == 0 {
		return "none"
	}
	names := make([]string, len(all))
	for i, g := range all {
		names[i] = fmt.Sprintf("%d (%s, %s)", g.Index, g.Name, g.UUID)
	}
	return strings.Join(names, ", ")
}
