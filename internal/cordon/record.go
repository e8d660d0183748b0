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

// AnnotationKey is the key of an owner's record on a node.
func AnnotationKey(owner string) string { return annotationPrefix + Key(owner) }

// LabelKey is the key of an owner's phase label. By itself it is a label selector for the nodes that the owner holds.
func LabelKey(owner string) string { return labelPrefix + Key(owner) }

// Key makes an owner's name into what may follow the prefix of a label or annotation key. A name that is fit for it
// stays as it is; any other is cut to its fit characters and told apart by its hash. The same name always gives the
// same key.
func Key(owner string) string {
	if owner != "" && validValue(owner) {
		return owner
	}
	const hashed = 8 // bytes
	fit := strings.Map(func(r rune) rune {
		if letterOrDigit(r) || strings.ContainsRune("-_.", r) {
			return r
		}
		return '-'
	}, owner)
	sum := sha256.Sum256([]byte(owner))
	fit = fit[:min(len(fit), maxName-2*hashed-1)]
	fit = strings.TrimLeft(fit, "-_.")
	return strings.TrimLeft(fit+"-", "-") + hex.EncodeToString(sum[:hashed])
}

func checkOwner(owner string) error {
	if owner == "" {
		return errors.New("owner is empty; want a name such as azure-<event id>")
	}
	if len(owner) > maxText || !utf8.ValidString(owner) {
		return fmt.Errorf("owner: %.80q: want at most %d bytes of UTF-8", owner, maxText)
	}
	return nil
}

// Record is what one owner has on a node.
type Record struct {
	Owner  string `json:"owner"`
	Reason string `json:"reason,omitempty"`
	// Since is when the owner first held the node, to the second.
	Since time.Time `json:"since"`
	// Cordon says whose the node's being unschedulable is; empty when the owner did not ask for it.
	Cordon Cordon `json:"cordon,omitempty"`
	// Taints, Labels and Conditions are ours: set by this owner, or shared with the owner of ours that set them.
	Taints     []Taint           `json:"taints,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
	Conditions map[string]Claim  `json:"conditions,omitempty"`
	// Phase is the value of the phase label.
	Phase Phase           `json:"phase,omitempty"`
	State json.RawMessage `json:"state,omitempty"`
}

// Cordon says whose a cordon is.
type Cordon string

// Whose a cordon can be.
const (
	// Own is a cordon of ours: the last owner to let go takes it off.
	Own Cordon = "own"
	// Found is a cordon that was there before us: it stays.
	Found Cordon = "found"
)

// Claim is by what a condition on the node is known for ours.
type Claim struct {
	Since  time.Time `json:"since"` // lastTransitionTime, to the second
	Reason string    `json:"reason"`
}

// matches reports whether a condition on the node is the one claimed. One that somebody has set anew, or to False, has
// become his.
func (c Claim) matches(on *kubeapi.Condition) bool {
	return on.Status == "True" && on.Reason == c.Reason && on.LastTransitionTime.Equal(c.Since)
}

// encode spells a record for its annotation, always in the same way.
func (r Record) encode() (string, error) {
	raw, err := json.Marshal(r)
	if err != nil {
		return "", fmt.Errorf("record of owner %q: %w", r.Owner, err)
	}
	return string(raw), nil
}

// List reads the records on a node, oldest first. Annotations under our prefix that cannot be read are reported, each
// as an [*UnreadableError]; they are nobody's hold, and are left where they are.
func List(node *kubeapi.Node) (records []Record, problems []error) {
	for key, value := range node.Annotations {
		if !strings.HasPrefix(key, annotationPrefix) {
			continue
		}
		record, err := decode(key, value)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		records = append(records, record)
	}
	slices.SortFunc(records, older)
	slices.SortFunc(problems, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return records, problems
}

func older(a, b Record) int {
	return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.Owner, b.Owner))
}

func decode(key, value string) (Record, error) {
	var r Record
	fail := func(err error) (Record, error) {
		return Record{}, &UnreadableError{Annotation: key, Value: value, Err: err}
	}
	if err := json.Unmarshal([]byte(value), &r); err != nil {
		return fail(err)
	}
	if r.Owner == "" || AnnotationKey(r.Owner) != key {
		return fail(fmt.Errorf("owner: %q: does not belong to this key", r.Owner))
	}
	if r.Cordon != "" && r.Cordon != Own && r.Cordon != Found {
		return fail(fmt.Errorf("cordon: %q: want %q, %q or none", r.Cordon, Own, Found))
	}
	return r, nil
}

// UnreadableError is an annotation under our prefix that is no record.
type UnreadableError struct {
	Annotation, Value string
	Err               error
}

func (e *UnreadableError) Error() string {
	value := e.Value
	if len(value) > 80 {
		value = strings.ToValidUTF8(value[:80], "") + "…"
	}
	return fmt.Sprintf("annotation %s: %q: %v; delete it by hand when nobody holds the node", e.Annotation, value, e.Err)
}

func (e *UnreadableError) Unwrap() error { return e.Err }

// IsUnreadable reports whether err is about an annotation that is no record.
func IsUnreadable(err error) bool {
	var unreadable *UnreadableError
	return errors.As(err, &unreadable)
}
