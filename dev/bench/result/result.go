// Package result is what the benchmarks measure, as a table for people and as a file to compare with.
package result

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
)

// Result is one measured figure.
type Result struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	// Reach says what the figure was meant to be, such as "at most 150".
	Reach string `json:"reach"`
	OK    bool   `json:"ok"`
	// Setup says how it was measured: the machine, the seed, the mix.
	Setup string `json:"setup"`
}

// AtMost is a figure that should not exceed a limit.
func AtMost(name string, value float64, unit string, limit float64, setup string) Result {
	return Result{name, value, unit, fmt.Sprintf("at most %g", limit), value <= limit, setup}
}

// AtLeast is a figure that should not fall below a limit.
func AtLeast(name string, value float64, unit string, limit float64, setup string) Result {
	return Result{name, value, unit, fmt.Sprintf("at least %g", limit), value >= limit, setup}
}

// Print writes the results of a group as a table.
func Print(w io.Writer, group string, results []Result) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	if _, err := fmt.Fprintf(t, "%s\tMEASURED\tREACH\t\n", group); err != nil {
		return fmt.Errorf("print results of %s: %w", group, err)
	}
	for _, r := range results {
		mark := "missed"
		if r.OK {
			mark = "reached"
		}
		if _, err := fmt.Fprintf(t, "%s\t%.4g %s\t%s\t%s\n", r.Name, r.Value, r.Unit, r.Reach, mark); err != nil {
			return fmt.Errorf("print results of %s: %w", group, err)
		}
	}
	return t.Flush()
}

// Write writes the results of a group to a file of its name in a folder, which is made if need be.
func Write(dir, group string, results []Result) error {
	text, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return fmt.Errorf("encode results of %s: %w", group, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write results of %s: %w", group, err)
	}
	if err := os.WriteFile(filepath.Join(dir, group+".json"), append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("write results of %s: %w", group, err)
	}
	return nil
}
