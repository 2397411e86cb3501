package layer

import "slices"

// partly is a layer of which not all parameters are trained.
type partly struct {
	Layer
	params []Param
}

// Freeze is l with its parameters frozen, but for those that are trained. Running statistics go on running.
func Freeze(l Layer, trained func(Param) bool) Layer {
	params := Params(l)
	for i, p := range params {
		params[i].Frozen = p.Running == 0 && !trained(p)
	}
	if m, ok := l.(*Modules); ok { // those that follow each other become one
		own := *m
		own.params = params
		return &own
	}
	return partly{l, params}
}

// Describe implements Layer.
func (l partly) Describe(s Size) Description {
	d := l.Layer.Describe(s)
	d.Params = l.params
	return d
}

// Trains reports whether a layer has a parameter that is trained.
func Trains(l Layer) bool {
	return slices.ContainsFunc(Params(l), func(p Param) bool { return p.Running == 0 && !p.Frozen })
}
