package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestEveryBenchmarkIsInTheTable: a new one is held against its bars without anybody having to remember it.
func TestEveryBenchmarkIsInTheTable(t *testing.T) {
	programs, err := filepath.Glob("../*/main.go")
	if err != nil || len(programs) == 0 {
		t.Fatalf("benchmarks: %v, %v", programs, err)
	}
	var named []string
	for _, b := range benches {
		named = append(named, b.name)
		if _, err := os.Stat(filepath.Join("..", b.name, "main.go")); err != nil {
			t.Error(err)
		}
	}
	for _, path := range programs {
		if name := filepath.Base(filepath.Dir(path)); name != "check" && !slices.Contains(named, name) {
			t.Errorf("bench/%s is not in the table", name)
		}
	}
}
