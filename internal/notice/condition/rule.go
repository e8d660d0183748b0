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
	// DefaultHoldDownTime ignores a condition that is true for a short time.
	DefaultHoldDownTime = time.Minute
	// DefaultReleaseDelay keeps a node drained if its condition is false only for a short time.
	DefaultReleaseDelay = 5 * time.Minute
	// maxRuleDuration limits both; a longer time is a mistake.
	maxRuleDuration = 24 * time.Hour
)

// Rule defines which status of a node condition makes the node unfit, and what the agent then does.
type Rule struct {
	// Type is the type of the condition, such as KernelDeadlock.
	Type string `json:"type"`
	// Status that counts: True, False or Unknown; empty is True.
	Status string `json:"status,omitempty"`
	// Action is the action for the notice; see [Actions].
	Action string `json:"action"`
	// HoldDown is how long the condition must have the status without a break before the action; default 1m
	// ([DefaultHoldDownTime]).
	HoldDown *Duration `json:"holdDown,omitempty"`
	// Release is how long the condition must not have the status before the node is restored; default 5m
	// ([DefaultReleaseDelay]).
	Release *Duration `json:"release,omitempty"`
}

// RuleActions returns the valid actions of a rule.
func RuleActions() []string { return []string{"ignore", "cordon", "drain-marked", "drain"} }

// HintTypes returns the condition types of AKS's node-problem-detector that repeat Scheduled Events. The agent checks
// such a condition against the metadata service, so no rule may name it.
// (https://learn.microsoft.com/azure/aks/node-problem-detector#node-conditions; PreemptionScheduled is a newer name.)
func HintTypes() []string {
	return []string{
		"VMEventScheduled", "FreezeScheduled", "RebootScheduled", "RedeployScheduled", "PreemptScheduled",
		"PreemptionScheduled", "TerminateScheduled",
	}
}

// ID returns the ID of the rule's notice. It is the condition type, followed by the wanted status unless that is True.
func (r Rule) ID() string {
	if r.wantedStatus() == "True" {
		return r.Type
	}
	return r.Type + "-" + r.wantedStatus()
}

func (r Rule) wantedStatus() string {
	if r.Status == "" {
		return "True"
	}
	return r.Status
}

func (r Rule) holdDownOrDefault() time.Duration { return r.HoldDown.orDefault(DefaultHoldDownTime) }
func (r Rule) releaseOrDefault() time.Duration  { return r.Release.orDefault(DefaultReleaseDelay) }

// Validate returns all errors in the rule. Each error names the field, its value and what is allowed.
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
	case slices.Contains(HintTypes(), r.Type):
		errs = append(errs, fmt.Errorf("type: %q: is confirmed with the metadata service, so no rule may name it; see the "+
			"setting for unconfirmed events", r.Type))
	}
	if slices.Contains([]string{"DrainInProgress", "Drained"}, r.Type) {
		bad("type", fmt.Sprintf("%q", r.Type), "a condition that the agent does not set itself when it drains")
	}
	if statuses := []string{"", "True", "False", "Unknown"}; !slices.Contains(statuses, r.Status) {
		bad("status", fmt.Sprintf("%.80q", r.Status), "True, False or Unknown")
	}
	if !slices.Contains(RuleActions(), r.Action) {
		bad("action", fmt.Sprintf("%.80q", r.Action), "one of "+strings.Join(RuleActions(), ", "))
	}
	for field, d := range map[string]time.Duration{"holdDown": r.holdDownOrDefault(), "release": r.releaseOrDefault()} {
		if d < 0 || d > maxRuleDuration {
			bad(field, d.String(), "0 to "+maxRuleDuration.String())
		}
	}
	return errors.Join(errs...)
}

// ValidateRules validates each rule. It also returns an error if two rules match the same status of a condition.
func ValidateRules(rules []Rule) error {
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

// ParseRule parses a rule in the syntax of the flag --condition:
// TYPE[:STATUS]=ACTION[,hold=DURATION][,release=DURATION].
func ParseRule(text string) (Rule, error) {
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

// Duration is a time.Duration that configuration files write in Go's format, such as "90s" or "5m".
type Duration time.Duration

func (d *Duration) orDefault(standard time.Duration) time.Duration {
	if d == nil {
		return standard
	}
	return time.Duration(*d)
}

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%.40q: want a duration, such as 90s or 5m", text)
	}
	*d = Duration(v)
	return nil
}
