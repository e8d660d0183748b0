// Package result is what a benchmark says: figures with their units, each next to what it has to reach, as a table for
// people and as JSON for those who compare.
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

// Result is one figure. As JSON it is {"name","value","unit","reach","ok","setup"}.
type Result struct {
	// Name says what was measured, the same from run to run.
	Name  string
	Value float64
	Unit  string
	// Reach is what Value has to be.
	Reach Reach
	// Setup is what it was measured on: all that somebody needs to measure it again.
	Setup string
}

// Reach bounds a value. The zero value bounds nothing.
type Reach struct {
	direction direction
	limit     float64
}

type direction int

const (
	unbounded direction = iota
	atMost
	atLeast
)

// AtMost is reached by limit and less.
func AtMost(limit float64) Reach { return Reach{atMost, limit} }

// AtLeast is reached by limit and more.
func AtLeast(limit float64) Reach { return Reach{atLeast, limit} }

// holds reports whether the value reaches r. No bound is reached by what is not a number.
func (r Reach) holds(value float64) bool {
	switch r.direction {
	case atMost:
		return value <= r.limit
	case atLeast:
		return value >= r.limit
	}
	return true
}

// text is r in the unit of the value, such as "<= 1.2 s"; empty for no bound.
func (r Reach) text(unit string) string {
	sign := map[direction]string{atMost: "<= ", atLeast: ">= "}[r.direction]
	if sign == "" {
		return ""
	}
	return strings.TrimSpace(sign + strconv.FormatFloat(r.limit, 'f', -1, 64) + " " + unit)
}

// OK reports whether the value reaches what it has to. It is computed each time, from the value as measured and not as
// printed, so that no benchmark can say it of itself.
func (r Result) OK() bool { return r.Reach.holds(r.Value) }

// MarshalJSON implements json.Marshaler.
func (r Result) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Name  string  `json:"name"`
		Value float64 `json:"value"`
		Unit  string  `json:"unit"`
		Reach string  `json:"reach"`
		OK    bool    `json:"ok"`
		Setup string  `json:"setup"`
	}{r.Name, r.Value, r.Unit, r.Reach.text(r.Unit), r.OK(), r.Setup})
}

// Missed lists the names of the results that do not reach what they have to.
func Missed(results []Result) []string {
	var names []string
	for _, r := range results {
		if !r.OK() {
			names = append(names, r.Name)
		}
	}
	return names
}

// Print writes the results of a group as a table, and below it what they were measured on.
func Print(w io.Writer, group string, results []Result) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "%s\tvalue\treach\t\n", group)
	for _, r := range results {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", r.Name, strings.TrimSpace(number(r.Value)+" "+r.Unit),
			r.Reach.text(r.Unit), r.verdict())
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("printing the results of %s: %w", group, err)
	}
	for _, r := range results {
		if _, err := fmt.Fprintf(w, "  %s: %s\n", r.Name, r.Setup); err != nil {
			return fmt.Errorf("printing the results of %s: %w", group, err)
		}
	}
	return nil
}

// number has three significant digits after the point at most, which is more than benchmarks can tell apart.
func number(v float64) string {
	if v == float64(int64(v)) {
		return strconv.FormatInt(int64(v), 10)
	}
	return strconv.FormatFloat(v, 'g', max(3, len(strconv.FormatInt(int64(v), 10))), 64)
}

func (r Result) verdict() string {
	switch {
	case r.Reach.direction == unbounded:
		return ""
	case r.OK():
		return "ok"
	}
	return "MISSED"
}

// Write writes the results of a group to GROUP.json in dir, which is made if it is missing.
func Write(dir, group string, results []Result) error {
	raw, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return fmt.Errorf("results of %s: %w", group, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // results are for everybody, as is the repository
		return fmt.Errorf("results of %s: %w", group, err)
	}
	path := filepath.Join(dir, group+".json")
	if err := os.WriteFile(path, append(raw, '\n'), 0o644); err != nil { //nolint:gosec // see above
		return fmt.Errorf("results of %s: %w", group, err)
	}
	return nil
}
