package strictyaml

import (
	"bytes"
	"encoding/json"
	"math"
	"math/big"
	"reflect"
	"regexp"
	"strconv"
	"strings"
)

// JSON is a mapping for a reader of JSON in another language, whose keys only that knows. It keeps the type that each value was written with: a number
// is a json.Number, with a point or an exponent unless it is an integer, of whatever size. Lists are []any, mappings map[string]any.
type JSON map[string]any

var typeJSON = reflect.TypeFor[JSON]()

// UnmarshalJSON reads what was written, types included.
func (j *JSON) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return d.Decode((*map[string]any)(j))
}

// otherwise are plain texts that other versions of YAML, as those of Python, read as truth values, as numbers, or as dates and times.
var otherwise = regexp.MustCompile(`^((?i:yes|no|on|off)|[-+]?[0-9][0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)?|[-+]?0[bx][0-9a-fA-F_]+|[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?` +
	`|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ].*)?)$`)

// exact decodes a value of a JSON. What may be read otherwise, and what JSON cannot say, is refused.
func (d decoder) exact(n *Node) any {
	switch n.Kind {
	case Mapping:
		m := make(map[string]any, len(n.Entries))
		for _, e := range n.Entries {
			if e.Kind != Text {
				d.report(e.at, e.Value.Key, strconv.Quote(e.Name), "%s has the key %s, which is no text; want a name, or quotes around it", n.Key, e.Name)
			}
			m[e.Name] = d.exact(e.Value)
		}
		return m
	case List:
		l := make([]any, len(n.Items))
		for i, item := range n.Items {
			l[i] = d.exact(item)
		}
		return l
	case Bool:
		return n.Scalar == "true"
	case Int:
		i, _ := new(big.Int).SetString(n.Scalar, 0)
		return json.Number(i.String())
	case Float:
		return d.exactFloat(n)
	case Text:
		if !n.Quoted && otherwise.MatchString(n.Scalar) {
			near := truth(n)
			if near == "" {
				near = strconv.Quote(n.Scalar)
			}
			d.Refuse(n.Key, near, "%s is %s, which is text here and something else in other versions of YAML; want quotes around a text, true or false, or a plain number", n.Key, n.Scalar)
		}
		return n.Scalar
	case Null, Refused:
	}
	return nil
}

func (d decoder) exactFloat(n *Node) any {
	x, _ := n.Number()
	if math.IsInf(x, 0) || math.IsNaN(x) {
		near := ""
		if !math.IsNaN(x) {
			near = strconv.FormatFloat(math.Copysign(math.MaxFloat64, x), 'g', -1, 64)
		}
		d.Refuse(n.Key, near, "%s wants a finite number of 64 bits; found %s", n.Key, n.Scalar)
		return nil
	}
	text := strconv.FormatFloat(x, 'g', -1, 64)
	if !strings.ContainsAny(text, ".e") {
		text += ".0"
	}
	return json.Number(text)
}
