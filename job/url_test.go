package job

import (
	"strconv"
	"strings"
	"testing"
)

func TestURLs(t *testing.T) {
	digest := strings.Repeat("0a", 32)
	for text, want := range map[string]string{ // what it names, or what is wrong
		"s3://corpora/en/a b%+#?*.txt":                   "s3://corpora/en/a b%+#?*.txt",
		"s3://corpora":                                   "s3://corpora/",
		"https://H.example:443/x?k=v":                    "https://h.example/x?k=v",
		"https://h.example/x#sha256=" + digest:           "https://h.example/x",
		"https://h.example/a%20b":                        "https://h.example/a%20b",
		"https://h.example":                              "https://h.example/",
		"http://h.example/x":                             `the scheme is "http"`,
		"gs://b/x":                                       `the scheme is "gs"`,
		"s3://B/x":                                       "is no bucket",
		"https://u:p@h.example/x":                        "a user or a password",
		"https:///x":                                     "without a host",
		"https://h.example/a/../b":                       `a path with ".."`,
		"https://h.example/a/%2e%2E/b":                   `a path with ".."`,
		"https://h.example/a%2Fb":                        "%2F",
		"https://h.example/x#sha256=12":                  "is no digest",
		"https://h.example/x#y":                          "is no digest",
		"https://h.example/\n":                           "control characters",
		"https://h.example/%zz":                          "not a URL",
		"https://h.example/" + strings.Repeat("x", 3000): "at most 2048",
	} {
		u, err := ParseURL(text)
		if got := u.String(); err == nil && got != want || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q is %q (%v), expected %s", text, got, err, want)
		}
	}
	if got := Shown("https://h.example/x?X-Amz-Signature=secret"); got != "https://h.example/x?..." {
		t.Errorf("shown is %s", got)
	}
}

// TestURLsStayAsTheyAre: they are no paths, and are refused where only a path can stand.
func TestURLsStayAsTheyAre(t *testing.T) {
	source := func(files, rest string) []byte {
		return []byte("version: 1\nmodel: {family: gpt2, config: {}}\ndata: {files: [" + files + "]" + rest + "}\noptimizer: {lr: 1}\ntrain: {steps: 1, batch: 1}\n")
	}
	j, _, err := Parse("job.yaml", source("\"s3://bucket/x/*\", y", ", validation: [\"https://h.example/x\"], tokenizer: t"), nil, Environment{})
	if err != nil {
		t.Fatal(err)
	}
	j.Absolute("/base")
	if got := strings.Join(append(j.Data.Files, append(j.Data.Validation, j.Data.Tokenizer)...), " "); got != "s3://bucket/x/* /base/y https://h.example/x /base/t" {
		t.Errorf("they are %s", got)
	}
	_, _, err = Parse("job.yaml", source("http://h.example/x", ""), nil, Environment{})
	if err == nil || !strings.Contains(err.Error(), "data.files[0]: the scheme is") || !strings.Contains(err.Error(), "https://h.example/x") {
		t.Errorf("%v", err)
	}
}

func FuzzParseURL(f *testing.F) {
	for _, seed := range []string{"s3://bucket/a/b", "https://h.example:443/a?b#sha256=00", "https://h/%2e%2e/x", "http://x", "s3://"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		u, err := ParseURL(text)
		if err != nil {
			return
		}
		again, err := ParseURL(u.String())
		if again.SHA256 = u.SHA256; err != nil || again != u {
			t.Errorf("%q is %+v, and that %+v (%v)", text, u, again, err)
		}
	})
}

// TestAStoreThatIsNoPlaceIsRefusedWithWhatABucketIs: s3://b/p has the form, and no server has a bucket of that name.
func TestAStoreThatIsNoPlaceIsRefusedWithWhatABucketIs(t *testing.T) {
	for store, refused := range map[string]bool{"s3://b/p": true, "s3://" + strings.Repeat("b", 64): true, "s3://abc/p": false, "s3://" + strings.Repeat("b", 63): false} {
		_, _, err := Parse("job.yaml", []byte("version: 1\nmodel: {family: gpt2, config: {}}\ndata: {files: [y]}\noptimizer: {lr: 1}\ntrain: {steps: 1, batch: 1}\n"), []string{"center.store=" + store}, Environment{})
		if says := err != nil && strings.Contains(err.Error(), "the BUCKET of 3 to 63 lower-case letters, digits, dots and dashes; found text "+strconv.Quote(store)); says != refused || (err == nil) == refused {
			t.Errorf("%s: %v", store, err)
		}
	}
}
