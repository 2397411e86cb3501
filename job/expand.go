package job

import (
	"fmt"
	"strings"
)

// expand replaces ~ at the start of a path by the home directory, ${NAME} by the variable and $$ by a dollar sign. The
// lookup reports a variable and whether it is set; an empty one counts as unset, since `${DIR}/**` would then mean the
// whole disk.
func expand(path string, lookup func(string) (string, bool)) (string, error) {
	if home, ok := strings.CutPrefix(path, "~"); ok {
		if home != "" && home[0] != '/' {
			return "", fmt.Errorf("another user's home directory (~%s) is not looked up; write the whole path", firstPart(home))
		}
		path = "${HOME}" + home
	}
	var out strings.Builder
	for {
		before, after, found := strings.Cut(path, "$")
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		if rest, ok := strings.CutPrefix(after, "$"); ok {
			out.WriteByte('$')
			path = rest
			continue
		}
		name, rest, ok := strings.Cut(strings.TrimPrefix(after, "{"), "}")
		if !strings.HasPrefix(after, "{") || !ok || name == "" {
			return "", fmt.Errorf("`$` starts a variable; write ${NAME}, or $$ for a dollar sign")
		}
		value, set := lookup(name)
		if !set || value == "" {
			return "", fmt.Errorf("variable ${%s} is not set; set it in the environment or write the path out", name)
		}
		out.WriteString(value)
		path = rest
	}
}

func firstPart(path string) string {
	name, _, _ := strings.Cut(path, "/")
	return name
}
