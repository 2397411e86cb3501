package check

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// render builds a directory as kubectl kustomize does, and decodes every object into the type of its API: fields that this does not have, and values of
// other types, are refused. What a server checks beyond that (names, quantities against nodes, admission) is not.
func render(t *testing.T, dir string) map[string]any {
	t.Helper()
	all, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]any{}
	for _, r := range all.Resources() {
		text, err := r.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		object := map[string]any{
			"v1 Namespace": &core.Namespace{}, "v1 Service": &core.Service{}, "v1 ConfigMap": &core.ConfigMap{}, "apps/v1 StatefulSet": &apps.StatefulSet{},
			"policy/v1 PodDisruptionBudget": &policy.PodDisruptionBudget{}, "networking.k8s.io/v1 NetworkPolicy": &networking.NetworkPolicy{},
		}[r.GetApiVersion()+" "+r.GetKind()]
		if object == nil {
			t.Errorf("no type is known of %s %s", r.GetApiVersion(), r.GetKind())
			continue
		}
		if err := yaml.UnmarshalStrict(text, object); err != nil {
			t.Errorf("%s %s: %v", r.GetKind(), r.GetName(), err)
		}
		out[r.GetKind()+" "+strings.SplitN(r.GetName(), "-", 2)[0]+map[bool]string{true: "-nodes"}[strings.HasSuffix(r.GetName(), "-nodes")]] = object
	}
	return out
}

func TestKubernetesBase(t *testing.T) {
	all := render(t, "../kubernetes/base")
	want := []string{"ConfigMap avgpipe", "Namespace avgpipe", "NetworkPolicy avgpipe", "PodDisruptionBudget avgpipe", "Service avgpipe", "Service avgpipe-nodes", "StatefulSet avgpipe"}
	if got := slices.Sorted(maps.Keys(all)); !slices.Equal(got, want) {
		t.Fatalf("it has %q; want %q", got, want)
	}
	set := all["StatefulSet avgpipe"].(*apps.StatefulSet)
	pod := set.Spec.Template
	labels := pod.Labels
	for name, selector := range map[string]map[string]string{
		"the set": set.Spec.Selector.MatchLabels, "clients": all["Service avgpipe"].(*core.Service).Spec.Selector, "nodes": all["Service avgpipe-nodes"].(*core.Service).Spec.Selector,
		"disruption": all["PodDisruptionBudget avgpipe"].(*policy.PodDisruptionBudget).Spec.Selector.MatchLabels,
		"network":    all["NetworkPolicy avgpipe"].(*networking.NetworkPolicy).Spec.PodSelector.MatchLabels,
	} {
		if len(selector) == 0 || !maps.Equal(selector, labels) {
			t.Errorf("%s: selects %v; the pods have %v", name, selector, labels)
		}
	}
	if nodes := all["Service avgpipe-nodes"].(*core.Service); nodes.Name != set.Spec.ServiceName || !nodes.Spec.PublishNotReadyAddresses || nodes.Spec.ClusterIP != core.ClusterIPNone {
		t.Errorf("the service of the nodes: %+v", nodes.Spec)
	}
	config := all["ConfigMap avgpipe"].(*core.ConfigMap)
	volumes := map[string]core.Volume{}
	for _, v := range pod.Spec.Volumes {
		volumes[v.Name] = v
	}
	for _, claim := range set.Spec.VolumeClaimTemplates {
		volumes[claim.Name] = core.Volume{}
	}
	if c := volumes["config"].ConfigMap; c == nil || c.Name != config.Name {
		t.Errorf("the volume of the configuration is %+v, the map is %s", c, config.Name)
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, m := range c.VolumeMounts {
			if _, ok := volumes[m.Name]; !ok {
				t.Errorf("%s mounts %s, which there is none of", c.Name, m.Name)
			}
		}
		if s := c.SecurityContext; s == nil || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || c.Image == "avgpipe" {
			t.Errorf("%s: %+v, image %s", c.Name, s, c.Image)
		}
	}
	daemon := pod.Spec.Containers[0]
	for path, probe := range map[string]*core.Probe{"/readyz": daemon.ReadinessProbe, "/healthz": daemon.LivenessProbe} {
		if probe.HTTPGet.Path != path || probe.HTTPGet.Port.StrVal != "metrics" {
			t.Errorf("a probe asks %+v; want %s", probe.HTTPGet, path)
		}
	}
	if !*pod.Spec.SecurityContext.RunAsNonRoot || set.Spec.UpdateStrategy.Type != apps.OnDeleteStatefulSetStrategyType || pod.Annotations["prometheus.io/port"] != "9464" {
		t.Errorf("%+v", pod.Spec.SecurityContext)
	}
}

func TestKubernetesOverlayForGPUs(t *testing.T) {
	daemon := render(t, "../kubernetes/gpu")["StatefulSet avgpipe"].(*apps.StatefulSet).Spec.Template.Spec.Containers[0]
	if n := daemon.Resources.Limits["nvidia.com/gpu"]; n.Value() != 1 || daemon.Resources.Limits.Cpu().IsZero() || daemon.ReadinessProbe == nil {
		t.Errorf("%+v", daemon.Resources)
	}
}

// What a pod does before its daemon starts, with the program and other directories: pod 0 begins, and is a member when it starts again.
func TestKubernetesStart(t *testing.T) {
	programs, dir := build(t), t.TempDir()
	for _, name := range []string{"etc", "run", "state"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	place := strings.NewReplacer("/etc/avgpipe", dir+"/etc", "/run/avgpipe", dir+"/run", "/var/lib/avgpipe", dir+"/state", "/authority", dir+"/authority")
	for _, name := range []string{"start.sh", "avgpiped.yaml"} {
		text, err := os.ReadFile(filepath.Join("../kubernetes/base", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "etc", name), []byte(strings.ReplaceAll(place.Replace(string(text)), "--"+dir+"/", "--")), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	run := func(name string, arguments ...string) string {
		c := exec.CommandContext(t.Context(), name, arguments...)
		c.Env = append(os.Environ(), "PATH="+programs+":"+os.Getenv("PATH"), "POD=avgpipe-0", "SPACE=training")
		said, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %q: %v: %s", name, arguments, err, said)
		}
		return string(said)
	}
	run(filepath.Join(programs, "avgpiped"), "authority", filepath.Join(dir, "authority"))
	for range 2 {
		if said := run("/bin/bash", filepath.Join(dir, "etc", "start.sh")); !strings.Contains(said, "avgpipe-0.avgpipe-nodes.training.svc:7700") {
			t.Errorf("it says %s", said)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "state", "pki", "node.crt")); err != nil {
		t.Error(err)
	}
}
