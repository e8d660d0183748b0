package cordon

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ClaimSpec says what an owner needs on the node, such as a cordon or taints.
type ClaimSpec struct {
	// Reason explains the claim to people.
	Reason string
	// Unschedulable cordons the node.
	Unschedulable bool
	// Taints must differ in key or effect.
	Taints []Taint
	Labels map[string]string
	// LabelOnlyOwnCordon sets the labels only while the node's cordon is ours ([OwnCordon]).
	LabelOnlyOwnCordon bool
	// Conditions must differ in type. They are set with status True.
	Conditions []Condition
	// DeferConditions delays the conditions: new ones are recorded but not set. A second WriteClaim without DeferConditions sets
	// them with one more request. Use it if something else is more urgent.
	DeferConditions bool
	// Phase is the value of the label [LabelKey]. With it, one list request finds all nodes of an owner. An empty
	// phase sets no label.
	Phase Phase
	// ReplacedOwners names owners with claims that this claim replaces. One request removes their records and writes this
	// one, so the node keeps what both claims need. What only they need is removed.
	ReplacedOwners []string
	// State is any JSON that the owner needs after a restart, stored in its [Record]. At most 32 KiB.
	State json.RawMessage
}

// Taint is a taint without the time of its addition.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect"`
}

// matches reports whether two taints have the same key and effect. A node cannot have both of such taints.
func (t Taint) matches(o Taint) bool { return t.Key == o.Key && t.Effect == o.Effect }

func (t Taint) String() string {
	if t.Value == "" {
		return t.Key + ":" + t.Effect
	}
	return t.Key + "=" + t.Value + ":" + t.Effect
}

// Phase is the progress of an owner's work on the node, as its label shows it.
type Phase string

// The phases. A label may have any other valid value too.
const (
	Cordoned Phase = "cordoned"
	Draining Phase = "draining"
	Drained  Phase = "drained"
)

// Types of the node lifecycle conditions, which Kubernetes defines since v1.37 (KEP-5683). An earlier API server
// accepts them like any unknown condition.
const (
	MaintenancePlanned    = "MaintenancePlanned"    // the instance will be interrupted at an announced time
	MaintenanceInProgress = "MaintenanceInProgress" // the interruption has begun
	DrainInProgress       = "DrainInProgress"       // pods are being evicted
	DrainedCondition      = "Drained"               // the pods that had to leave have left
)

func lifecycleTypes() []string {
	return []string{MaintenancePlanned, MaintenanceInProgress, DrainInProgress, DrainedCondition}
}

// Condition is a lifecycle condition that an owner sets to True.
//
// While the condition is set, its reason and transition time stay the same, because they identify it as set by Slipway.
// Its message may change. If several owners need the same condition, it has the message of the first owner.
type Condition struct {
	Type    string
	Reason  string // one word in CamelCase
	Message string
}

// Limits of the API server, in bytes. maxState and maxText are limits of Slipway.
const (
	maxName   = 63
	maxPrefix = 253
	maxState  = 32 << 10
	maxText   = 1 << 10
)

func (r ClaimSpec) validate() error {
	if len(r.Reason) > maxText {
		return fmt.Errorf("reason: has %d bytes, want at most %d", len(r.Reason), maxText)
	}
	if !isValidValue(string(r.Phase)) {
		return fmt.Errorf("phase: %q: want a label value, such as %q", r.Phase, Draining)
	}
	if len(r.State) > maxState {
		return fmt.Errorf("state: has %d bytes, want at most %d", len(r.State), maxState)
	}
	if len(r.State) > 0 && !json.Valid(r.State) {
		return errors.New("state: is not JSON")
	}
	for key, value := range r.Labels {
		if err := ValidateLabel(key, value); err != nil {
			return err
		}
	}
	return errors.Join(validateTaints(r.Taints), validateConditions(r.Conditions))
}

// normalizedState returns the state as encoding/json writes it into a record. So a comparison with a stored record
// finds no difference in spelling.
func (r ClaimSpec) normalizedState() json.RawMessage {
	if len(r.State) == 0 {
		return nil
	}
	spelled, err := json.Marshal(r.State)
	if err != nil {
		return r.State // not JSON, which validate has refused
	}
	return spelled
}

// ValidateLabel returns an error if WriteClaim would refuse the label.
func ValidateLabel(key, value string) error {
	switch {
	case !isValidKey(key):
		return fmt.Errorf("label %q: want a key such as example.com/name", key)
	case strings.HasPrefix(key, labelPrefix):
		return fmt.Errorf("label %q: its prefix is reserved for the phase label", key)
	case !isValidValue(value):
		return fmt.Errorf("label %s: %q: want at most %d letters, digits, '-', '_' and '.'", key, value, maxName)
	}
	return nil
}

func validateTaints(taints []Taint) error {
	effects := []string{"NoSchedule", "PreferNoSchedule", "NoExecute"}
	for i, t := range taints {
		switch {
		case !isValidKey(t.Key):
			return fmt.Errorf("taint %q: want a key such as example.com/name", t)
		case !isValidValue(t.Value):
			return fmt.Errorf("taint %q: want a value of at most %d letters, digits, '-', '_' and '.'", t, maxName)
		case !slices.Contains(effects, t.Effect):
			return fmt.Errorf("taint %q: want one of the effects %s", t, strings.Join(effects, ", "))
		case slices.ContainsFunc(taints[:i], t.matches):
			return fmt.Errorf("taint %q: is there twice", t)
		}
	}
	return nil
}

// ValidateTaint returns an error for a taint that the API server would refuse.
func ValidateTaint(t Taint) error { return validateTaints([]Taint{t}) }

func validateConditions(conditions []Condition) error {
	for i, c := range conditions {
		switch {
		case !slices.Contains(lifecycleTypes(), c.Type):
			return fmt.Errorf("condition %q: want one of %s", c.Type, strings.Join(lifecycleTypes(), ", "))
		case c.Reason == "" || strings.ContainsFunc(c.Reason, func(r rune) bool { return !isLetterOrDigit(r) }):
			return fmt.Errorf("condition %s: reason %q: want one word of letters and digits", c.Type, c.Reason)
		case slices.ContainsFunc(conditions[:i], func(o Condition) bool { return o.Type == c.Type }):
			return fmt.Errorf("condition %s: is there twice", c.Type)
		}
	}
	return nil
}

// isValidKey reports whether key is a valid key of a label, annotation or taint: NAME or PREFIX/NAME.
func isValidKey(key string) bool {
	prefix, name, found := strings.Cut(key, "/")
	if !found {
		return key != "" && isValidValue(key)
	}
	if prefix == "" || len(prefix) > maxPrefix || name == "" || !isValidValue(name) {
		return false
	}
	for part := range strings.SplitSeq(prefix, ".") {
		if part == "" || part[0] == '-' || part[len(part)-1] == '-' ||
			strings.ContainsFunc(part, func(r rune) bool { return r != '-' && (!isLetterOrDigit(r) || r >= 'A' && r <= 'Z') }) {
			return false
		}
	}
	return true
}

// isValidValue reports whether value is a valid label value: empty, or with a letter or digit at both ends.
func isValidValue(value string) bool {
	if value == "" {
		return true
	}
	odd := func(r rune) bool { return !isLetterOrDigit(r) && !strings.ContainsRune("-_.", r) }
	return len(value) <= maxName && !strings.ContainsFunc(value, odd) &&
		isLetterOrDigit(rune(value[0])) && isLetterOrDigit(rune(value[len(value)-1]))
}

func isLetterOrDigit(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
}
