package cordon

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Request is how an owner wants the node to be.
type Request struct {
	// Reason says for people why the node is held.
	Reason string
	// Unschedulable asks for the node to be cordoned.
	Unschedulable bool
	// Taints must differ in key or effect.
	Taints []Taint
	Labels map[string]string
	// LabelOwnCordon has the labels be set only while the node's cordon is ours ([Own]).
	LabelOwnCordon bool
	// Conditions must differ in type. They are set with status True.
	Conditions []Condition
	// Later leaves the conditions as they are for now: those that are new are claimed and not set. A hold with the same
	// request but for this sets them, in one request more. It is for whoever has something more urgent to do.
	Later bool
	// Phase is the value of the label [LabelKey], by which nodes of one owner are found with one list; without one the
	// label is not set.
	Phase Phase
	// Replaces names owners whose claims end with this one's: one request removes their records and writes this one's, so
	// that the node stays as both want it. What they set and this owner does not want goes as with a release.
	Replaces []string
	// State is any JSON that the owner wants to find again after a restart, in [Record]. At most 32 KiB.
	State json.RawMessage
}

// Taint is a taint of a node, as corev1.Taint has it, less the time.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect"`
}

// same reports whether two taints are the same to the API server, which allows no two of one key and effect.
func (t Taint) same(o Taint) bool { return t.Key == o.Key && t.Effect == o.Effect }

// String spells the taint as kubectl does.
func (t Taint) String() string {
	if t.Value == "" {
		return t.Key + ":" + t.Effect
	}
	return t.Key + "=" + t.Value + ":" + t.Effect
}

// Phase is how far an owner is with the node.
type Phase string

// The phases of an owner. Any other label value will do.
const (
	Cordoned Phase = "cordoned"
	Draining Phase = "draining"
	Drained  Phase = "drained"
)

// Types of the node lifecycle conditions, which Kubernetes defines from v1.37 on (KEP-5683). Before, an API server
// takes them like any condition it does not know.
const (
	MaintenancePlanned    = "MaintenancePlanned"    // the machine is to be interrupted, at a time that is announced
	MaintenanceInProgress = "MaintenanceInProgress" // the interruption has begun
	DrainInProgress       = "DrainInProgress"       // pods are moved off the node
	DrainedCondition      = "Drained"               // the pods that had to leave have left
)

func lifecycleTypes() []string {
	return []string{MaintenancePlanned, MaintenanceInProgress, DrainInProgress, DrainedCondition}
}

// Condition is a lifecycle condition that an owner wants to be true.
//
// While a condition stands its reason and its time stay as they were first set, which is how we know it for ours; the
// message may change. A condition shared by several owners carries the message of the first.
type Condition struct {
	Type    string
	Reason  string // one word in CamelCase
	Message string
}

// Limits of the API server, and our own for what is opaque to us.
const (
	maxName   = 63
	maxPrefix = 253
	maxState  = 32 << 10
	maxText   = 1 << 10
)

func (r Request) check() error {
	if len(r.Reason) > maxText {
		return fmt.Errorf("reason: has %d bytes, want at most %d", len(r.Reason), maxText)
	}
	if !validValue(string(r.Phase)) {
		return fmt.Errorf("phase: %q: want a label value, such as %q", r.Phase, Draining)
	}
	if len(r.State) > maxState {
		return fmt.Errorf("state: has %d bytes, want at most %d", len(r.State), maxState)
	}
	if len(r.State) > 0 && !json.Valid(r.State) {
		return errors.New("state: is no JSON")
	}
	for key, value := range r.Labels {
		if err := CheckLabel(key, value); err != nil {
			return err
		}
	}
	return errors.Join(checkTaints(r.Taints), checkConditions(r.Conditions))
}

// spelledState is the state as encoding/json spells it inside a record, so that what is written is what is read back.
func (r Request) spelledState() json.RawMessage {
	if len(r.State) == 0 {
		return nil
	}
	spelled, err := json.Marshal(r.State)
	if err != nil {
		return r.State // no JSON, which check has refused
	}
	return spelled
}

// CheckLabel reports a label that Hold would refuse.
func CheckLabel(key, value string) error {
	switch {
	case !validKey(key):
		return fmt.Errorf("label %q: want a key such as example.com/name", key)
	case strings.HasPrefix(key, labelPrefix):
		return fmt.Errorf("label %q: is kept for the phase", key)
	case !validValue(value):
		return fmt.Errorf("label %s: %q: want at most %d letters, digits, '-', '_' and '.'", key, value, maxName)
	}
	return nil
}

func checkTaints(taints []Taint) error {
	effects := []string{"NoSchedule", "PreferNoSchedule", "NoExecute"}
	for i, t := range taints {
		switch {
		case !validKey(t.Key):
			return fmt.Errorf("taint %q: want a key such as example.com/name", t)
		case !validValue(t.Value):
			return fmt.Errorf("taint %q: want a value of at most %d letters, digits, '-', '_' and '.'", t, maxName)
		case !slices.Contains(effects, t.Effect):
			return fmt.Errorf("taint %q: want one of the effects %s", t, strings.Join(effects, ", "))
		case slices.ContainsFunc(taints[:i], t.same):
			return fmt.Errorf("taint %q: is there twice", t)
		}
	}
	return nil
}

// CheckTaint reports a taint that the API server would refuse.
func CheckTaint(t Taint) error { return checkTaints([]Taint{t}) }

func checkConditions(conditions []Condition) error {
	for i, c := range conditions {
		switch {
		case !slices.Contains(lifecycleTypes(), c.Type):
			return fmt.Errorf("condition %q: want one of %s", c.Type, strings.Join(lifecycleTypes(), ", "))
		case c.Reason == "" || strings.ContainsFunc(c.Reason, func(r rune) bool { return !letterOrDigit(r) }):
			return fmt.Errorf("condition %s: reason %q: want one word of letters and digits", c.Type, c.Reason)
		case slices.ContainsFunc(conditions[:i], func(o Condition) bool { return o.Type == c.Type }):
			return fmt.Errorf("condition %s: is there twice", c.Type)
		}
	}
	return nil
}

// validKey reports whether the API server takes a key for labels, annotations and taints: a name, or prefix/name.
func validKey(key string) bool {
	prefix, name, found := strings.Cut(key, "/")
	if !found {
		return key != "" && validValue(key)
	}
	if prefix == "" || len(prefix) > maxPrefix || name == "" || !validValue(name) {
		return false
	}
	for part := range strings.SplitSeq(prefix, ".") {
		if part == "" || part[0] == '-' || part[len(part)-1] == '-' ||
			strings.ContainsFunc(part, func(r rune) bool { return r != '-' && (!letterOrDigit(r) || r >= 'A' && r <= 'Z') }) {
			return false
		}
	}
	return true
}

// validValue reports whether the API server takes a value for a label: empty, or beginning and ending with a letter or
// digit.
func validValue(value string) bool {
	if value == "" {
		return true
	}
	odd := func(r rune) bool { return !letterOrDigit(r) && !strings.ContainsRune("-_.", r) }
	return len(value) <= maxName && !strings.ContainsFunc(value, odd) &&
		letterOrDigit(rune(value[0])) && letterOrDigit(rune(value[len(value)-1]))
}

func letterOrDigit(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
}
