package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage/foreign"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// TestCheckTriesModulesWithoutADaemon, of a program alone, and refuses those that cannot train with their line.
func TestCheckTriesModulesWithoutADaemon(t *testing.T) {
	const programs = "../../stage/foreign/testdata/"
	with := []string{"--set", "model.interpreter=" + stagetest.Python(t), "--set", "data.sequence=12", "--set", "model.vocabulary=11"}
	check := func(code int, args ...string) result {
		t.Helper()
		return want(t, code, nil, append(append([]string{"check"}, args...), with...)...)
	}
	text := check(exitDone, programs+"cut.py:transformer", "--set", "model.cut=[layers.1, head]").out
	for _, part := range []string{"3 modules: ok", "layers.1", "█", "times as fast", "i32[12] f32[12,16]"} {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in\n%s", part, text)
		}
	}
	if text := check(exitDone, programs+"cut.py:transformer").out; !strings.Contains(text, "model.cut: [positions, layers.0, layers.1, layers.2, norm, head]") {
		t.Errorf("nothing of where to cut in\n%s", text)
	}
	var found checkedModules
	if err := json.Unmarshal([]byte(check(exitDone, programs+"cut.py:transformer", "-o", "json").out), &found); err != nil || len(found.Modules) != 1 || found.Modules[0].Parameters == 0 {
		t.Errorf("%+v %v", found, err)
	}
	with = with[:2]
	if r := check(exitRefused, programs+"refused.py:detaches", "--set", "model.image=[1, 1, 2]"); !strings.Contains(r.messages, "refused.py:") || !strings.Contains(r.messages, "no gradient flows") {
		t.Errorf("messages %s", r.messages)
	}
	if r := check(exitRefused, programs+"refused.py:nothing", "--set", "model.cutt=[x]"); !strings.Contains(r.messages, "nearest: cut") {
		t.Errorf("messages %s", r.messages)
	}
}

// TestBalancedStages: the slowest is as fast as it can be.
func TestBalancedStages(t *testing.T) {
	for _, c := range []struct {
		times   []float64
		begins  []int
		slowest float64
	}{
		{[]float64{1, 1, 1, 1}, []int{0, 2}, 2},
		{[]float64{5, 1, 1, 1}, []int{0, 1}, 5},
		{[]float64{1, 1, 5, 1}, []int{0, 2, 3}, 5},
	} {
		if begins, slowest := balanced(c.times, len(c.begins)); !slices.Equal(begins, c.begins) || slowest != c.slowest {
			t.Errorf("%v: found %v %v, expected %v %v", c.times, begins, slowest, c.begins, c.slowest)
		}
	}
	if s := foreign.Seconds(50e9); s != 1 {
		t.Errorf("50e9 operations take %v s", s)
	}
}
