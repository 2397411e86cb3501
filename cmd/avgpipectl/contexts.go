package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/nearest"
	"github.com/avgpipe/avgpipe/internal/strictyaml"
)

// localContext is the name that stands for the socket of the daemon of this host.
const localContext = "local"

// The files of a context, in a directory of its name beside the configuration.
const (
	certificateFile = "client.crt"
	keyFile         = "client.key"
	authorityFile   = "authority.crt"
)

// contexts is the configuration file of avgpipectl.
type contexts struct {
	Context  string         `yaml:"context" default:"local" does:"the context that is used where nothing else is said"`
	Contexts map[string]any `yaml:"contexts" does:"clusters by name, each with its addresses"`

	dir string
	all []remoteContext // of Contexts, by name
}

// remoteContext is a cluster that is reached over the network.
type remoteContext struct {
	name      string
	addresses []string
	dir       string // of its files
}

var contextsSchema = strictyaml.SchemaOf[contexts]("a configuration of avgpipectl", 64<<10)

var contextName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// contextsPath is where the configuration file is, below $XDG_CONFIG_HOME, else ~/.config.
func contextsPath() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("find the configuration: %w", err)
	}
	return filepath.Join(dir, "avgpipe", "config.yaml"), nil
}

// readContexts reads the configuration file. Without one there is no context but that of this host.
func readContexts() (*contexts, error) {
	path, err := contextsPath()
	if err != nil {
		return &contexts{Context: localContext}, nil //nolint:nilerr // a user without a home has no contexts
	}
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &contexts{Context: localContext, dir: filepath.Dir(path)}, nil
	case err != nil:
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	return parseContexts(path, text)
}

// parseContexts parses the configuration file strictly: every problem at once, at its line.
func parseContexts(path string, text []byte) (*contexts, error) {
	c := contexts{dir: filepath.Dir(path)}
	contextsSchema.SetDefaults(&c)
	file := contextsSchema.Read(path, text)
	file.Decode(&c)
	if node := file.Value("contexts"); node != nil {
		for _, e := range node.Entries {
			c.add(file, e)
		}
	}
	if _, err := c.find(c.Context); err != nil && file.Err() == nil {
		file.Refuse("context", "", "%v", err)
	}
	if err := file.Err(); err != nil {
		return nil, &exit{exitRefused, err}
	}
	return &c, nil
}

// add reads one context.
func (c *contexts) add(file *strictyaml.Document, e strictyaml.Entry) {
	key := strictyaml.Join("contexts", e.Name)
	if !contextName.MatchString(e.Name) || e.Name == localContext {
		file.Refuse(key, "", "a context is named %q; a name has up to 64 letters, digits, dots, dashes and underscores, and %s is this host's daemon", e.Name, localContext)
		return
	}
	one := remoteContext{name: e.Name, dir: filepath.Join(c.dir, e.Name)}
	for _, inner := range e.Value.Entries {
		if inner.Name != "addresses" {
			file.Refuse(key, "", "context %s has the key %q; allowed is addresses", e.Name, inner.Name)
		}
	}
	if list := e.Value.Child("addresses"); list != nil {
		for _, item := range list.Items {
			if err := checkAddress(item.Scalar); err != nil {
				file.Refuse(key, "", "context %s: %v", e.Name, err)
			}
			one.addresses = append(one.addresses, item.Scalar)
		}
	}
	if len(one.addresses) == 0 {
		file.Refuse(key, "", "context %s wants addresses, a list of such as node1:7946", e.Name)
	}
	c.all = append(c.all, one)
}

// checkAddress refuses what is no host:port.
func checkAddress(text string) error {
	host, port, err := net.SplitHostPort(text)
	n, numeric := strconv.ParseUint(port, 10, 16)
	if err != nil || numeric != nil || n == 0 || host == "" {
		return fmt.Errorf("the address %q is none; want one such as node1:7946", text)
	}
	return nil
}

// find returns a context; nil: the daemon of this host.
func (c *contexts) find(name string) (*remoteContext, error) {
	if name == localContext {
		return nil, nil //nolint:nilnil // as documented
	}
	names := []string{localContext}
	for i := range c.all {
		if c.all[i].name == name {
			return &c.all[i], nil
		}
		names = append(names, c.all[i].name)
	}
	hint := ""
	if near := nearest.Word(name, names); near != "" {
		hint = fmt.Sprintf(" did you mean %s?", near)
	}
	return nil, usagef("no context %q;%s there are %s; avgpipectl login makes one", name, hint, strings.Join(names, ", "))
}

// set adds a context, or replaces the one of its name.
func (c *contexts) set(one remoteContext) {
	one.dir = filepath.Join(c.dir, one.name)
	c.all = append(slices.DeleteFunc(c.all, func(r remoteContext) bool { return r.name == one.name }), one)
	slices.SortFunc(c.all, func(a, b remoteContext) int { return strings.Compare(a.name, b.name) })
}

// write writes the configuration file.
func (c *contexts) write() error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Clusters that avgpipectl reaches. avgpipectl login and avgpipectl context use write this file.\ncontext: %s\n", c.Context)
	if len(c.all) > 0 {
		b.WriteString("contexts:\n")
	}
	for _, one := range c.all {
		fmt.Fprintf(&b, "  %s:\n    addresses:\n", one.name)
		for _, a := range one.addresses {
			fmt.Fprintf(&b, "      - %q\n", a)
		}
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	return checkpoint.WriteFile(filepath.Join(c.dir, "config.yaml"), []byte(b.String()), 0o600)
}

// open reads the certificate and the key of a context.
func (r *remoteContext) open() (*api.Remote, error) {
	out := &api.Remote{Name: r.name, Addresses: r.addresses, Authority: x509.NewCertPool()}
	again := fmt.Sprintf("avgpipectl login %s --token TOKEN --name %s makes them anew", r.addresses[0], r.name)
	var err error
	if out.Certificate, err = tls.LoadX509KeyPair(filepath.Join(r.dir, certificateFile), filepath.Join(r.dir, keyFile)); err != nil {
		return nil, fmt.Errorf("context %s: read the certificate and its key in %s: %w; %s", r.name, r.dir, err, again)
	}
	text, err := os.ReadFile(filepath.Join(r.dir, authorityFile))
	if err == nil && !out.Authority.AppendCertsFromPEM(text) {
		err = errors.New("there is no certificate in it")
	}
	if err != nil {
		return nil, fmt.Errorf("context %s: read the certificate of the cluster's authority, %s: %w; %s", r.name, filepath.Join(r.dir, authorityFile), err, again)
	}
	return out, nil
}

// uid is the user's id on the hosts of the cluster, as the certificate has it.
func (r *remoteContext) uid() (uint32, error) {
	pair, err := tls.LoadX509KeyPair(filepath.Join(r.dir, certificateFile), filepath.Join(r.dir, keyFile))
	if err != nil {
		return 0, fmt.Errorf("context %s: %w", r.name, err)
	}
	for _, u := range pair.Leaf.URIs {
		if n, err := strconv.ParseUint(strings.TrimPrefix(u.Path, "/"), 10, 32); err == nil && u.Scheme == "avgpipe" && u.Host == "uid" {
			return uint32(n), nil
		}
	}
	return 0, fmt.Errorf("context %s: the certificate names no user id", r.name)
}
