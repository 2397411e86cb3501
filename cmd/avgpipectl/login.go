package main

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/pki"
)

func newLoginCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "login ADDRESS...",
		Short: "Get a certificate for a cluster that is reached over the network",
		Long: `Get a certificate for a cluster that is reached over the network, by a token that an administrator made (avgpiped token). The
ADDRESS is of one of its nodes, or of several. A key is made here and stays here; it, the certificate and the addresses of all nodes become a
context, which verbs ask from then on. A token can be used once. A context of another cluster is replaced with --force alone.

The certificate is renewed by itself whenever a verb is run after two thirds of its time.`,
		Example: `  avgpipectl login node1:7700 --token avgpipe-...
  avgpipectl login node1:7700 node2:7700 --token avgpipe-... --name production`,
	}
	text := cmd.Flags().String("token", "", "the `TOKEN` (default $AVGPIPE_TOKEN)")
	name := cmd.Flags().String("name", "cluster", "the `NAME` of the context")
	force := cmd.Flags().Bool("force", false, "replace a context of another cluster")
	return verb(cmd, func(c *call) error { return c.login(cmp.Or(*text, os.Getenv("AVGPIPE_TOKEN")), *name, *force) })
}

// login makes a context.
func (c *call) login(text, name string, force bool) error {
	if text == "" {
		return usagef("login: say the token with --token, or in AVGPIPE_TOKEN; an administrator makes one with avgpiped token --role submit --user NAME")
	}
	if !contextName.MatchString(name) || name == localContext {
		return usagef("login: --name %q: a context's name has up to 64 letters, digits, dots, dashes and underscores, and %s is this host's daemon", name, localContext)
	}
	token, err := pki.ParseToken(text)
	if err != nil {
		return usagef("login: %w", err)
	}
	for _, address := range c.args {
		if err := checkAddress(address); err != nil {
			return usagef("login: %w", err)
		}
	}
	all, err := readContexts()
	if err != nil {
		return err
	}
	one := remoteContext{name: name, dir: filepath.Join(all.dir, name)}
	if err := one.replaceable(token); err != nil && !force {
		return err
	}
	key, csr, err := pki.NewKey()
	if err != nil {
		return err
	}
	answer, err := enrol(c.ctx, c.args, token, csr)
	if err != nil {
		return fmt.Errorf("login: %w", err)
	}
	if one.addresses = answer.Addresses; len(one.addresses) == 0 {
		one.addresses = c.args
	}
	if err := one.keep(key, pki.EncodeCertificates(answer.Certificate), pki.EncodeCertificates(answer.Authority...)); err != nil {
		return err
	}
	all.set(one)
	all.Context = name
	if err := all.write(); err != nil {
		return err
	}
	line := contextLine{Name: name, Current: true, Addresses: one.addresses}
	return c.show(line, func(p *page) {
		p.printf("logged in as %s, with the role %s; context %s is used from now on\n", answer.Name, answer.Role, name)
	})
}

// replaceable refuses a token of another cluster than the one whose certificates the context has: they, and the key, would be lost. It is asked before
// the token is used up.
func (r *remoteContext) replaceable(token pki.Token) error {
	path := filepath.Join(r.dir, authorityFile)
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("login: whether context %s is of the token's cluster: %w", r.name, err)
	}
	for rest := text; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return usagef("login: context %s is of another cluster than the token (%s); name this one with --name, or have it replaced with --force", r.name, path)
		}
		if certificate, err := x509.ParseCertificate(block.Bytes); err == nil && token.Matches(certificate) {
			return nil
		}
	}
}

// enrol asks one node after the other for a certificate, until one answers.
func enrol(ctx context.Context, addresses []string, token pki.Token, csr []byte) (*pki.JoinResponse, error) {
	var failed error
	for _, address := range addresses {
		answer, err := pki.Join(ctx, address, token, pki.JoinRequest{CSR: csr})
		if err == nil {
			return answer, nil
		}
		failed = errors.Join(failed, err)
		if _, refused := errors.AsType[*pki.JoinError](err); refused || ctx.Err() != nil {
			break
		}
	}
	return nil, failed
}

// keep writes the files of a context, the certificate last.
func (r *remoteContext) keep(key, certificate, authority []byte) error {
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return fmt.Errorf("context %s: keep its certificate: %w", r.name, err)
	}
	for _, f := range []struct {
		name string
		text []byte
	}{{keyFile, key}, {authorityFile, authority}, {certificateFile, certificate}} {
		if err := checkpoint.WriteFile(filepath.Join(r.dir, f.name), f.text, 0o600); err != nil {
			return fmt.Errorf("context %s: keep its certificate: %w", r.name, err)
		}
	}
	return nil
}

// renewBound is how long a verb waits for another certificate.
const renewBound = 5 * time.Second

// renew has a certificate renewed when two thirds of its time are over. It goes on without where that fails: the old one is still good.
func (c *call) renew(r *api.Remote) {
	if r.Certificate.Leaf == nil || time.Now().Before(pki.RenewAt(r.Certificate.Leaf)) {
		return
	}
	ctx, cancel := context.WithTimeout(c.ctx, renewBound)
	defer cancel()
	if err := c.tryRenew(ctx); err != nil {
		fmt.Fprintf(c.messages, "the certificate of context %s, which expires %s, was not renewed: %v\n", //nolint:errcheck // for show
			c.remote.name, r.Certificate.Leaf.NotAfter.Format(time.DateOnly), err)
	}
}

func (c *call) tryRenew(ctx context.Context) error {
	key, err := os.ReadFile(filepath.Join(c.remote.dir, keyFile))
	if err != nil {
		return err
	}
	csr, err := pki.Request(key)
	if err != nil {
		return err
	}
	answer, err := c.client.Renew(ctx, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr})))
	if err != nil {
		return err
	}
	return c.remote.keep(key, []byte(answer.Certificate), []byte(answer.Authority))
}
