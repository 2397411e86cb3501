package report

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"
)

func TestFigureHoldsOnItsSideOfTheBar(t *testing.T) {
	for _, c := range []struct {
		value, bar float64
		atMost     bool
		want       bool
	}{
		{1.8, 1.7, false, true},
		{1.7, 1.7, false, true},
		{1.6, 1.7, false, false},
		{math.NaN(), 1.7, false, false},
		{4, 20, true, true},
		{20, 20, true, true},
		{21, 20, true, false},
		{0, 20, true, true},
		{-0.04, 20, true, true},
		{math.NaN(), 20, true, false},
		{math.Inf(-1), 20, true, false},
		{math.Inf(1), 1.7, false, false},
	} {
		if got := (Figure{Value: c.value, Bar: c.bar, AtMost: c.atMost}).holds(); got != c.want {
			t.Errorf("%+v: holds is %v", c, got)
		}
		if (Figure{Value: c.value, Bar: c.bar, AtMost: c.atMost, Void: "a node was late"}).holds() {
			t.Errorf("%+v: it holds, and does not count", c)
		}
	}
}

func TestReportPrintsALineAndARowForEachFigure(t *testing.T) {
	var lines, table bytes.Buffer
	figures := []Figure{
		{Bench: "b", Metric: "speed", Value: 1.8, Unit: "x", Bar: 1.7, Aim: 2},
		{Bench: "b", Metric: "cost", Value: 30, Unit: "us", Bar: 20, Aim: 5, AtMost: true, Conditions: map[string]any{"stages": 2}},
	}
	if err := Report(&lines, &table, figures...); err != nil {
		t.Fatal(err)
	}
	decoder := json.NewDecoder(&lines)
	for i, holds := range []bool{true, false} {
		var f Figure
		if err := decoder.Decode(&f); err != nil {
			t.Fatal(err)
		}
		if f.Metric != figures[i].Metric || f.Value != figures[i].Value || f.Holds != holds {
			t.Errorf("line %d is %+v", i, f)
		}
	}
	if decoder.More() {
		t.Error("more lines than figures")
	}
	if got := table.String(); strings.Count(got, "\n") != 3 || !strings.Contains(got, "30 us") || !strings.Contains(got, "does not hold") {
		t.Errorf("the table is\n%s", got)
	}
}

func TestMedianIsTheMiddle(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1, 5}, 5}, {[]float64{4, 1, 3, 2}, 2.5}} {
		if got := Median(c.values); got != c.want {
			t.Errorf("median of %v is %v, want %v", c.values, got, c.want)
		}
	}
}
