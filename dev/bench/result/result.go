// Package result holds the results of a benchmark: values with units and targets. It writes them as a table and as JSON.
package result

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Result is one measured value with its unit and target. Its JSON form is
// {"name","value","unit","target","ok","setup"}.
type Result struct {
	// Name names the measurement. It is the same in each run.
	Name  string
	Value float64
	Unit  string
	// Target is the target of Value.
	Target Bound
	// Setup describes the conditions, with everything needed to repeat the measurement.
	Setup string
}

// Bound is an upper or lower limit for a value. The zero Bound allows every value.
type Bound struct {
	direction direction
	limit     float64
}

type direction int

const (
	unbounded direction = iota
	atMost
	atLeast
)

// AtMost returns the bound that allows values up to limit.
func AtMost(limit float64) Bound { return Bound{atMost, limit} }

// AtLeast returns the bound that allows values from limit on.
func AtLeast(limit float64) Bound { return Bound{atLeast, limit} }

// isMet reports whether the value meets the bound. NaN meets no bound.
func (r Bound) isMet(value float64) bool {
	switch r.direction {
	case atMost:
		return value <= r.limit
	case atLeast:
		return value >= r.limit
	}
	return true
}

// format returns the bound as text with the unit, such as "<= 1.2 s". For the zero Bound it returns "".
func (r Bound) format(unit string) string {
	sign := map[direction]string{atMost: "<= ", atLeast: ">= "}[r.direction]
	if sign == "" {
		return ""
	}
	return strings.TrimSpace(sign + strconv.FormatFloat(r.limit, 'f', -1, 64) + " " + unit)
}

// MeetsTarget reports whether the measured value, before rounding for print, meets its target.
func (r Result) MeetsTarget() bool { return r.Target.isMet(r.Value) }

// MarshalJSON writes the JSON form of Result. The target is text, such as "<= 1.2 s", and empty if every value is
// allowed. A Value that is NaN or infinite is an error.
func (r Result) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Name  string  `json:"name"`
		Value float64 `json:"value"`
		Unit  string  `json:"unit"`
		Reach string  `json:"target"`
		OK    bool    `json:"ok"`
		Setup string  `json:"setup"`
	}{r.Name, r.Value, r.Unit, r.Target.format(r.Unit), r.MeetsTarget(), r.Setup})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (r *Result) UnmarshalJSON(raw []byte) error {
	var read struct {
		Name, Unit, Target, Setup string
		Value                     float64
	}
	if err := json.Unmarshal(raw, &read); err != nil {
		return err
	}
	*r = Result{Name: read.Name, Value: read.Value, Unit: read.Unit, Setup: read.Setup}
	if read.Target == "" {
		return nil
	}
	words := strings.Fields(read.Target)
	if len(words) < 2 {
		return fmt.Errorf("result %s: target %q: must be a comparison and a number", r.Name, read.Target)
	}
	limit, err := strconv.ParseFloat(words[1], 64)
	if err != nil {
		return fmt.Errorf("result %s: target %q: %w", r.Name, read.Target, err)
	}
	r.Target = AtMost(limit)
	if words[0] == ">=" {
		r.Target = AtLeast(limit)
	}
	return nil
}

// MissedTargets lists the names of the results that miss their target.
func MissedTargets(results []Result) []string {
	var names []string
	for _, r := range results {
		if !r.MeetsTarget() {
			names = append(names, r.Name)
		}
	}
	return names
}

// PrintTable writes the results of a benchmark group as a table. Below the table it writes the conditions of each
// result.
func PrintTable(w io.Writer, group string, results []Result) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "%s\tvalue\ttarget\t\n", group)
	for _, r := range results {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", r.Name, strings.TrimSpace(formatNumber(r.Value)+" "+r.Unit),
			r.Target.format(r.Unit), r.formatOutcome())
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print the results of %s: %w", group, err)
	}
	for _, r := range results {
		if _, err := fmt.Fprintf(w, "  %s: %s\n", r.Name, r.Setup); err != nil {
			return fmt.Errorf("print the results of %s: %w", group, err)
		}
	}
	return nil
}

// formatNumber returns a value as text with at least three significant digits.
func formatNumber(v float64) string {
	if v == float64(int64(v)) {
		return strconv.FormatInt(int64(v), 10)
	}
	return strconv.FormatFloat(v, 'g', max(3, len(strconv.FormatInt(int64(v), 10))), 64)
}

func (r Result) formatOutcome() string {
	switch {
	case r.Target.direction == unbounded:
		return ""
	case r.MeetsTarget():
		return "ok"
	}
	return "MISSED"
}

// WriteJSON writes the results of a benchmark group to the file GROUP.json in dir. It creates dir if needed.
func WriteJSON(dir, group string, results []Result) error {
	raw, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return fmt.Errorf("results of %s: %w", group, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // results are public, as the repository is
		return fmt.Errorf("results of %s: %w", group, err)
	}
	path := filepath.Join(dir, group+".json")
	if err := os.WriteFile(path, append(raw, '\n'), 0o644); err != nil { //nolint:gosec // see above
		return fmt.Errorf("results of %s: %w", group, err)
	}
	return nil
}
