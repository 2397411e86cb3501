package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/node"
	"github.com/avgpipe/avgpipe/internal/objectstore"
	"github.com/avgpipe/avgpipe/internal/remotedata"
	"github.com/avgpipe/avgpipe/internal/strictyaml"
	"github.com/avgpipe/avgpipe/job"
)

// sourceFile is a file of the directory that data_sources names: what jobs may read from a bucket or a web server.
type sourceFile struct {
	URL         string      `yaml:"url" rule:"required" pattern:"^(s3|https)://" form:"s3://BUCKET/PREFIX, https://HOST/PATH, or https:// for every host"`
	Users       []userName  `yaml:"users" rule:"items=1+"`
	Groups      []group     `yaml:"groups" rule:"items=1+"`
	Private     bool        `yaml:"private" default:"false"`
	Credentials credentials `yaml:"credentials" default:"none" rule:"word=none"`
	Endpoint    string      `yaml:"endpoint" rule:"optional" pattern:"^https?://[^/]+/?$" form:"https://HOST or http://HOST:PORT"`
	Region      string      `yaml:"region" rule:"optional" pattern:"^[a-z0-9-]{1,64}$" form:"a region"`
}

var sourceSchema = strictyaml.SchemaOf[sourceFile]("a source of data", 64<<10)

// userName is the name or the number of a user of this host.
type userName uint32

// Wants implements strictyaml.Value.
func (*userName) Wants() string { return "the name or the number of a user of this host" }

// Set implements strictyaml.Value.
func (u *userName) Set(text string) bool {
	if known, err := user.Lookup(text); err == nil {
		text = known.Uid
	}
	id, err := strconv.ParseUint(text, 10, 32)
	*u = userName(id)
	return err == nil
}

// sources reads what jobs may read from elsewhere. Of a bucket without credentials of its own, they are those of s3_credentials.
func (c *config) sources(buckets *objectstore.Config) (all remotedata.Sources, err error) {
	if c.DataSources == "" {
		return nil, nil
	}
	dir := string(c.DataSources)
	refuse := func(err error) (remotedata.Sources, error) {
		return nil, &node.KeyError{Key: "data_sources", Err: fmt.Errorf("data_sources: %w", err)}
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return refuse(err)
	}
	for _, f := range files {
		if strings.HasPrefix(f.Name(), ".") || filepath.Ext(f.Name()) != ".yaml" {
			continue
		}
		s, err := readSource(filepath.Join(dir, f.Name()), buckets)
		if err != nil {
			return refuse(err)
		}
		all = append(all, s)
	}
	if len(all) == 0 {
		return refuse(fmt.Errorf("%s has no file whose name ends in .yaml", dir))
	}
	return all, nil
}

// readSource reads one.
func readSource(path string, buckets *objectstore.Config) (s remotedata.Source, err error) {
	text, err := (*access.Opener)(nil).ReadFile(path, int64(sourceSchema.MaxBytes))
	if err != nil {
		return s, err
	}
	var f sourceFile
	sourceSchema.SetDefaults(&f)
	file := sourceSchema.Read(path, text)
	if file.Decode(&f); file.Err() != nil {
		return s, file.Err()
	}
	s = remotedata.Source{URL: f.URL, Private: f.Private}
	for _, u := range f.Users {
		s.UIDs = append(s.UIDs, uint32(u))
	}
	for _, name := range f.Groups {
		id, err := gid(string(name))
		if err != nil {
			return s, fmt.Errorf("%s: groups: %w", path, err)
		}
		s.GIDs = append(s.GIDs, id)
	}
	if strings.HasPrefix(f.URL, job.SchemeS3+"://") {
		s.Bucket, err = f.bucket(buckets)
	} else if f.Endpoint != "" || f.Region != "" {
		err = errors.New("endpoint and region are for buckets")
	} else if f.Credentials != "" {
		var words []string
		if words, err = secret(string(f.Credentials), 1, "a token"); err == nil {
			s.Token = words[0]
		}
	}
	if err == nil {
		err = s.Validate()
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return s, err
}

// bucket says where the bucket of a source is.
func (f *sourceFile) bucket(all *objectstore.Config) (*objectstore.Config, error) {
	if all == nil {
		all = &objectstore.Config{}
	}
	b := *all
	b.Endpoint, b.Region = cmp.Or(f.Endpoint, b.Endpoint), cmp.Or(f.Region, b.Region)
	if f.Credentials != "" {
		words, err := secret(string(f.Credentials), 2, "the access key in the first line, and the secret key in the second")
		if err != nil {
			return nil, err
		}
		b.AccessKey, b.SecretKey = words[0], words[1]
	}
	if b.AccessKey == "" {
		return nil, errors.New("a bucket needs credentials; name a file, or set s3_credentials")
	}
	return &b, b.Validate()
}

// gid is the number of a group of this host.
func gid(name string) (uint32, error) {
	g, err := user.LookupGroup(name)
	if err != nil {
		return 0, err
	}
	id, err := strconv.ParseUint(g.Gid, 10, 32)
	return uint32(id), err
}
