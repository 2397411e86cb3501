// Package check holds the files below deploy that are for other schedulers against what these read: Kubernetes' objects against the types of its API, Nomad's
// job against its syntax, and Slurm's batch script by running it. A module of its own, so that the programs depend on none of this.
package check

import (
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// documented are the attributes of the blocks that are used, from the documentation of Nomad's job specification. Nomad itself is not asked: types of values,
// and what its drivers want of config, are not checked.
var documented = map[string][]string{
	"variable": {"type", "default", "description", "nullable"}, "job": {"type", "datacenters", "node_pool", "namespace", "priority", "region", "all_at_once"},
	"constraint": {"attribute", "operator", "value"}, "update": {"max_parallel", "stagger", "health_check", "min_healthy_time", "healthy_deadline"},
	"group": {"count"}, "network": {"mode"}, "port": {"static", "to", "host_network"}, "restart": {"attempts", "interval", "delay", "mode", "render_templates"},
	"task": {"driver", "user", "kill_signal", "kill_timeout", "leader", "shutdown_delay"}, "config": {"command", "args", "work_dir", "cgroup_v2_override"},
	"template":  {"destination", "data", "uid", "gid", "perms", "change_mode", "env", "source"},
	"resources": {"cpu", "cores", "memory", "memory_max"}, "service": {"name", "provider", "port", "address_mode", "tags"},
	"check": {"type", "path", "port", "interval", "timeout", "name", "method", "protocol"}, "env": nil,
}

func TestNomadJob(t *testing.T) {
	file, problems := hclparse.NewParser().ParseHCLFile("../nomad/avgpipe.nomad.hcl")
	if problems.HasErrors() {
		t.Fatal(problems)
	}
	body, ok := file.Body.(*hclsyntax.Body)
	if !ok {
		t.Fatalf("the body is a %T", file.Body)
	}
	seen := map[string]int{}
	var walk func(path string, b *hclsyntax.Body)
	walk = func(path string, b *hclsyntax.Body) {
		for _, inner := range b.Blocks {
			allowed, known := documented[inner.Type]
			if !known {
				t.Errorf("%s: no block %s is known in %s", inner.TypeRange, inner.Type, path)
			}
			seen[inner.Type]++
			for name, a := range inner.Body.Attributes {
				if inner.Type != "env" && !slices.Contains(allowed, name) {
					t.Errorf("%s: no attribute %s is known in %s", a.NameRange, name, inner.Type)
				}
			}
			walk(path+"/"+inner.Type, inner.Body)
		}
	}
	walk("", body)
	if seen["job"] != 1 || seen["task"] != 1 || seen["template"] != 4 {
		t.Errorf("it has %v", seen)
	}
	text := string(file.Bytes)
	for _, want := range []string{"exec avgpiped --config", "--authority", "/readyz"} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %q in it", want)
		}
	}
}
