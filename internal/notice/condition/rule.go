package condition

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
)

// Defaults of a [Rule].
const (
	// DefaultHoldDown lets a condition that comes and goes come and go.
	DefaultHoldDown = time.Minute
	// DefaultRelease keeps a node that has just recovered from being given back and taken away again.
	DefaultRelease = 5 * time.Minute
	// longest bounds both; more is a slip of the pen.
	longest = 24 * time.Hour
)

// Rule says which state of one of the node's conditions makes the node unfit, and what is done then.
type Rule struct {
	// Type is the condition's, such as KernelDeadlock.
	Type string `json:"type"`
	// Status that counts: True, False or Unknown; empty is True.
	Status string `json:"status,omitempty"`
	// Action is what is done then; see [Actions].
	Action string `json:"action"`
	// HoldDown is for how long the condition must hold without a break before anything is done; left out it is 1m ([DefaultHoldDown]).
	HoldDown *Duration `json:"holdDown,omitempty"`
	// Release is for how long it must be gone without a break before the node is given back; left out it is 5m
	// ([DefaultRelease]).
	Release *Duration `json:"release,omitempty"`
}

// Actions lists what a rule may ask for.
func Actions() []string { return []string{"ignore", "cordon", "drain-marked", "drain"} }

// Hints lists the condition types by which AKS's node-problem-detector announces what Scheduled Events announce too.
// They are confirmed with the metadata service, and no rule may name them.
// (https://learn.microsoft.com/azure/aks/node-problem-detector#node-conditions; PreemptionScheduled is a newer name.)
func Hints() []string {
	return []string{
		"VMEventScheduled", "FreezeScheduled", "RebootScheduled", "RedeployScheduled", "PreemptScheduled",
		"PreemptionScheduled", "TerminateScheduled",
	}
}

// ID is the ID of the notice that the rule makes: the type, and the status where it is not True.
func (r Rule) ID() string {
	if r.status() == "True" {
		return r.Type
	}
	return r.Type + "-" + r.status()
}

func (r Rule) status() string {
	if r.Status == "" {
		return "True"
	}
	return r.Status
}

func (r Rule) holdDown() time.Duration { return r.HoldDown.or(DefaultHoldDown) }
func (r Rule) release() time.Duration  { return r.Release.or(DefaultRelease) }

// Validate reports everything that is wrong with the rule; each error names the field, its value and what is allowed.
func (r Rule) Validate() error {
	var errs []error
	bad := func(field, value, want string) {
		errs = append(errs, fmt.Errorf("%s: %s: want %s", field, value, want))
	}
	odd := func(c rune) bool {
		return c > unicode.MaxASCII || !unicode.IsLetter(c) && !unicode.IsDigit(c) && !strings.ContainsRune("-_./", c)
	}
	switch {
	case r.Type == "" || len(r.Type) > 316 || strings.ContainsFunc(r.Type, odd):
		bad("type", fmt.Sprintf("%.80q", r.Type), "the type of a node condition, such as KernelDeadlock")
	case slices.Contains(Hints(), r.Type):
		errs = append(errs, fmt.Errorf("type: %q: is confirmed with the metadata service and takes no rule; see the "+
			"setting for what is unconfirmed", r.Type))
	}
	if slices.Contains([]string{"DrainInProgress", "Drained"}, r.Type) {
		bad("type", fmt.Sprintf("%q", r.Type), "a condition that the agent does not set itself when it drains")
	}
	if statuses := []string{"", "True", "False", "Unknown"}; !slices.Contains(statuses, r.Status) {
		bad("status", fmt.Sprintf("%.80q", r.Status), "True, False or Unknown")
	}
	if !slices.Contains(Actions(), r.Action) {
		bad("action", fmt.Sprintf("%.80q", r.Action), "one of "+strings.Join(Actions(), ", "))
	}
	for field, d := range map[string]time.Duration{"holdDown": r.holdDown(), "release": r.release()} {
		if d < 0 || d > longest {
			bad(field, d.String(), "0 to "+longest.String())
		}
	}
	return errors.Join(errs...)
}

// ValidateAll validates each rule, and that no two are about one state of a condition.
func ValidateAll(rules []Rule) error {
	var errs []error
	for i, r := range rules {
		if err := r.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("[%d] (%.80s): %w", i, r.Type, err))
		}
		if slices.ContainsFunc(rules[:i], func(o Rule) bool { return o.ID() == r.ID() }) {
			errs = append(errs, fmt.Errorf("[%d]: %.80s is there twice", i, r.ID()))
		}
	}
	return errors.Join(errs...)
}

// Parse reads a rule as a flag spells it: TYPE[:STATUS]=ACTION[,hold=DURATION][,release=DURATION].
func Parse(text string) (Rule, error) {
	const form = "want TYPE[:STATUS]=ACTION[,hold=DURATION][,release=DURATION], such as KernelDeadlock=drain,hold=2m"
	which, what, found := strings.Cut(text, "=")
	if !found {
		return Rule{}, fmt.Errorf("%.80q: %s", text, form)
	}
	var r Rule
	r.Type, r.Status, _ = strings.Cut(which, ":")
	parts := strings.Split(what, ",")
	r.Action = parts[0]
	for _, part := range parts[1:] {
		key, value, _ := strings.Cut(part, "=")
		field := map[string]**Duration{"hold": &r.HoldDown, "release": &r.Release}[key]
		if field == nil || *field != nil {
			return Rule{}, fmt.Errorf("%.80q: %.40q: %s", text, part, form)
		}
		*field = new(Duration)
		if err := (*field).UnmarshalText([]byte(value)); err != nil {
			return Rule{}, fmt.Errorf("%.80q: %s: %w", text, key, err)
		}
	}
	if err := r.Validate(); err != nil {
		return Rule{}, fmt.Errorf("%.80q: %w", text, err)
	}
	return r, nil
}

// Duration is a time.Duration that configuration files spell as Go does, such as "90s" or "5m".
type Duration time.Duration

// or is the duration, or another when there is none.
func (d *Duration) or(standard time.Duration) time.Duration {
	if d == nil {
		return standard
	}
	return time.Duration(*d)
}

// MarshalText makes Duration an encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText makes Duration an encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%.40q: want a duration, such as 90s or 5m", text)
	}
	*d = Duration(v)
	return nil
}
