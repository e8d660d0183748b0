package cordon

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

const (
	annotationPrefix = "cordon.slipway.dev/"
	labelPrefix      = "notice.slipway.dev/"
)

// AnnotationKey returns the key of an owner's record on a node.
func AnnotationKey(owner string) string { return annotationPrefix + ToKeyName(owner) }

// LabelKey returns the key of an owner's phase label. Used as a label selector, it selects the nodes with a claim of
// the owner.
func LabelKey(owner string) string { return labelPrefix + ToKeyName(owner) }

// ToKeyName converts an owner's name to the name part of a label or annotation key. A valid name does not change. Any
// other name loses its invalid characters and gets a hash of the owner. The same owner always has the same key.
func ToKeyName(owner string) string {
	if owner != "" && isValidValue(owner) {
		return owner
	}
	const hashed = 8 // bytes
	fit := strings.Map(func(r rune) rune {
		if isLetterOrDigit(r) || strings.ContainsRune("-_.", r) {
			return r
		}
		return '-'
	}, owner)
	sum := sha256.Sum256([]byte(owner))
	fit = fit[:min(len(fit), maxName-2*hashed-1)]
	fit = strings.TrimLeft(fit, "-_.")
	return strings.TrimLeft(fit+"-", "-") + hex.EncodeToString(sum[:hashed])
}

func validateOwner(owner string) error {
	if owner == "" {
		return errors.New("owner: is empty, want a name such as azure-<event id>")
	}
	if len(owner) > maxText || !utf8.ValidString(owner) {
		return fmt.Errorf("owner: %.80q: want at most %d bytes of UTF-8", owner, maxText)
	}
	return nil
}

// Record is the claim of one owner on a node.
type Record struct {
	Owner  string `json:"owner"`
	Reason string `json:"reason,omitempty"`
	// Since is when the owner first claimed the node, in seconds.
	Since time.Time `json:"since"`
	// Cordon says who set spec.unschedulable; empty if the owner did not request a cordon.
	Cordon CordonOrigin `json:"cordon,omitempty"`
	// Taints, Labels and Conditions are ours: set by this owner, or shared with another owner that set them.
	Taints     []Taint                   `json:"taints,omitempty"`
	Labels     map[string]string         `json:"labels,omitempty"`
	Conditions map[string]ConditionClaim `json:"conditions,omitempty"`
	// Phase is the value of the phase label.
	Phase Phase           `json:"phase,omitempty"`
	State json.RawMessage `json:"state,omitempty"`
}

// CordonOrigin says whether Slipway has set a cordon or has found it.
type CordonOrigin string

// The values of CordonOrigin.
const (
	// OwnCordon is a cordon that Slipway has set. The last owner uncordons the node.
	OwnCordon CordonOrigin = "own"
	// FoundCordon is a cordon that was on the node before. Slipway does not remove it.
	FoundCordon CordonOrigin = "found"
)

// ConditionClaim records which condition Slipway has set on the node, by its transition time and reason.
type ConditionClaim struct {
	Since  time.Time `json:"since"` // lastTransitionTime, in seconds
	Reason string    `json:"reason"`
}

// matches reports whether a condition on the node is the claimed one. If another writer has set the condition to False,
// or has set it again, it is not the claimed one.
func (c ConditionClaim) matches(on *kubeapi.Condition) bool {
	return on.Status == "True" && on.Reason == c.Reason && on.LastTransitionTime.Equal(c.Since)
}

func (r Record) encode() (string, error) {
	raw, err := json.Marshal(r)
	if err != nil {
		return "", fmt.Errorf("record of owner %q: %w", r.Owner, err)
	}
	return string(raw), nil
}

// ListRecords returns the records on a node, oldest first. It returns an [*UnreadableError] for each annotation with
// Slipway's prefix that cannot be parsed. Such an annotation is not a claim, and Slipway does not remove it.
func ListRecords(node *kubeapi.Node) (records []Record, problems []error) {
	for key, value := range node.Annotations {
		if !strings.HasPrefix(key, annotationPrefix) {
			continue
		}
		record, err := decodeRecord(key, value)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		records = append(records, record)
	}
	slices.SortFunc(records, compareAge)
	slices.SortFunc(problems, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return records, problems
}

func compareAge(a, b Record) int {
	return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.Owner, b.Owner))
}

func decodeRecord(key, value string) (Record, error) {
	var r Record
	fail := func(err error) (Record, error) {
		return Record{}, &UnreadableError{Annotation: key, Value: value, Err: err}
	}
	if err := json.Unmarshal([]byte(value), &r); err != nil {
		return fail(err)
	}
	if r.Owner == "" || AnnotationKey(r.Owner) != key {
		return fail(fmt.Errorf("owner: %q: does not match the annotation key", r.Owner))
	}
	if r.Cordon != "" && r.Cordon != OwnCordon && r.Cordon != FoundCordon {
		return fail(fmt.Errorf("cordon: %q: want %q, %q or none", r.Cordon, OwnCordon, FoundCordon))
	}
	return r, nil
}

// UnreadableError is the error for an annotation with Slipway's prefix that is not a valid record.
type UnreadableError struct {
	Annotation, Value string
	Err               error
}

func (e *UnreadableError) Error() string {
	value := e.Value
	if len(value) > 80 {
		value = strings.ToValidUTF8(value[:80], "") + "…"
	}
	return fmt.Sprintf("annotation %s: %q: %v; delete it manually if the node has no cordon claim", e.Annotation, value, e.Err)
}

func (e *UnreadableError) Unwrap() error { return e.Err }

// IsUnreadableError reports whether err is an [*UnreadableError].
func IsUnreadableError(err error) bool {
	var unreadable *UnreadableError
	return errors.As(err, &unreadable)
}
